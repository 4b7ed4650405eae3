/* The three fences of a session: epoch, generation, term.
 *
 * One client, two servers, one log. The stream is the log: a sender is a cursor over it. The first server may crash, fail
 * an append, or live on without knowing that the client left it; the second one takes over and goes on with the stream.
 *
 * What must hold, whatever the interleaving (names as in docs/guarantees.md):
 *
 *   no_stale_audio   once the client was told that an answer was cut, no audio of it arrives          STALE
 *   heard_only       what the log says was never sent, was never sent                                 DISHONEST
 *   exactly_once     nothing is lost but audio that was cut, and nothing comes twice                  LOST, DOUBLED
 *   one_writer       after the first event of a term, none of a lower term                            SPLIT
 *   output_fence     audio of an old epoch never becomes an event                                     LATE
 *   answered         every barge-in is answered, or its connection is gone                            (ltl below)
 *
 * Each rule that makes them hold can be taken out with a -D flag; specs/check.sh shows that each is then caught:
 *
 *   NO_WRITE_FENCE    the epoch is checked when a frame is picked, not again at the instant of the write
 *   NO_SILENCE        the sender goes on between the fence in memory and the moment that its event is durable
 *   NO_TERM_CHECK     the append does not compare the term inside its transaction
 *   FOLD_FIRST        a new owner reads the log before it takes the term
 *   NO_OUTPUT_FENCE   what the model made is appended without looking at the epoch again
 *   PURGE_ONLY        a cut jumps the cursor over what is queued, and trusts that: no check at the write, no silence
 *   NO_RESUME_NUMBER  the new owner starts from the end of the log and not from the number that the client names
 *   RESUME_FROM_START the new owner sends the whole log anew
 *   STAY_SILENT       the sender is not woken when the cut is durable
 *
 * The product also compares the expected position in each append. That is left out here on purpose: the term alone must
 * be enough. Wall time is left out too (the second that a server may go on without confirming its term).
 */

#ifdef PURGE_ONLY
#define NO_WRITE_FENCE
#define NO_SILENCE
#endif

#define SPLIT     1         /* the claims by number; -DONLY=n looks at one of them alone */
#define LATE      2
#define DOUBLED   3
#define STALE     4
#define DISHONEST 5
#define LOST      6
#ifndef ONLY
#define ONLY      0
#endif
#define CLAIM(number, holds) assert((ONLY != 0 && ONLY != number) || (holds))

#ifndef LOG_MAX
#define LOG_MAX   5         /* events in the log; the last EPOCH_MAX places are kept for cuts */
#endif
#define EPOCH_MAX 2         /* cuts explored */
#define NOBODY    2

mtype = { delta, notice, cut };

/* The log: durable, shared, numbered from 1. */
mtype kind[LOG_MAX + 1];
byte  made_in[LOG_MAX + 1];                 /* the epoch of that event */
byte  cut_cursor[EPOCH_MAX + 1];            /* per epoch: the cursor that its epoch_bump recorded */
byte  head = 0, log_epoch = 0, term = 1;

/* What each server believes. */
byte  my_term[2], epoch[2], view[2], cursor[2];
bool  ready[2], fencing[2];

/* The client. */
byte  connected = 0;                        /* the server that holds its socket, or NOBODY */
byte  seen = 0;                             /* the last number it got */
byte  told = 0;                             /* the highest epoch that it was told of by a cut */
bool  got[LOG_MAX + 1];

/* Ghosts. */
byte  last_writer = 1;
bool  asking[2];

#define ALIVE(s)   (my_term[s] > 0 && ready[s])
#ifdef NO_SILENCE
#define SILENT(s) false
#else
#define SILENT(s) fencing[s]
#endif
#define HOLDS(s)   (ALIVE(s) && connected == s)
#define DEAD(s, n) (kind[n] == delta && made_in[n] < epoch[s])

inline append(s, what, in_epoch) {          /* one transaction; the caller is in an atomic block */
    head++;
    kind[head] = what; made_in[head] = in_epoch; view[s] = head;
    CLAIM(SPLIT, my_term[s] >= last_writer);
    last_writer = my_term[s];
    if
    :: what == cut -> log_epoch = in_epoch
    :: else -> CLAIM(LATE, in_epoch >= log_epoch)
    fi
}

inline discard(s) {                         /* the actor and its memory go; the socket closes; nothing is rolled back */
    my_term[s] = 0; asking[s] = false;
    if :: connected == s -> connected = NOBODY :: else fi
}

proctype model(byte s) {                    /* looks at the epoch, computes for a while, then hands over its output */
    byte e;
end: do
     :: atomic { ALIVE(s) && head < LOG_MAX - EPOCH_MAX -> e = epoch[s] };
        atomic {
            if
            :: !ALIVE(s) -> skip
            :: else ->
               if
#ifndef NO_TERM_CHECK
               :: my_term[s] != term -> discard(s)
#endif
#ifndef NO_OUTPUT_FENCE
               :: e < epoch[s] -> skip                                /* counted as a stale output, never an event */
               :: fencing[s] -> skip
#endif
               :: else -> if :: head < LOG_MAX - EPOCH_MAX -> append(s, delta, e) :: else fi
               fi
            fi;
            e = 0
        }
     od
}

proctype notices(byte s) {                  /* what is said whatever becomes of the answer: speech_started, say */
end: do
     :: atomic { ALIVE(s) && !fencing[s] && head < LOG_MAX - EPOCH_MAX ->
            if
#ifndef NO_TERM_CHECK
            :: my_term[s] != term -> discard(s)
#endif
            :: else -> append(s, notice, epoch[s])
            fi }
     od
}

proctype barge_in(byte s) {                 /* fence in memory at once; then make it durable */
    byte at;
end: do
     :: atomic { ALIVE(s) && connected == s && log_epoch < EPOCH_MAX && epoch[s] < EPOCH_MAX ->
            asking[s] = true; fencing[s] = true; epoch[s]++; at = cursor[s];
#ifdef PURGE_ONLY
            cursor[s] = view[s]
#endif
        };
        atomic {
            if
            :: !ALIVE(s) -> skip
            :: ALIVE(s) -> discard(s)                                 /* the append fails: disk, connection */
#ifndef NO_TERM_CHECK
            :: ALIVE(s) && my_term[s] != term -> discard(s)
            :: ALIVE(s) && my_term[s] == term ->
#else
            :: ALIVE(s) && head < LOG_MAX ->
#endif
               cut_cursor[epoch[s]] = at; append(s, cut, epoch[s]);
#ifndef STAY_SILENT
               fencing[s] = false
#endif
            fi;
            at = 0
        }
     od
}

proctype sender(byte s) {                   /* picks a frame, holds it, writes it: two steps, and much happens between */
    byte n;
end: do
     :: atomic { HOLDS(s) && cursor[s] < view[s] && !SILENT(s) -> n = cursor[s] + 1;
            do :: n < view[s] && DEAD(s, n) -> n++ :: else -> break od;
            if :: DEAD(s, n) -> cursor[s] = n; n = 0 :: else fi       /* nothing but dead audio is left */
        };
        atomic {
            if
            :: n == 0 -> skip
            :: n > 0 && !HOLDS(s) -> skip                                /* this socket was replaced or closed */
            :: n > 0 && HOLDS(s) && SILENT(s) -> skip
#ifndef NO_WRITE_FENCE
            :: n > 0 && HOLDS(s) && !SILENT(s) && DEAD(s, n) -> skip           /* dead by now: the sender picks anew */
#endif
            :: else ->
               cursor[s] = n;
               if
               :: connected = NOBODY                                  /* handed over, lost in flight with the socket */
               :: CLAIM(DOUBLED, n > seen);
                  CLAIM(STALE, !(kind[n] == delta && made_in[n] < told));
                  CLAIM(DISHONEST, !(kind[n] == delta && made_in[n] < log_epoch && n > cut_cursor[made_in[n] + 1]));
                  seen = n; got[n] = true;
                  if :: kind[n] == cut -> told = made_in[n]; asking[s] = false :: else fi
               fi
            fi;
            if :: connected != s -> asking[s] = false :: else fi;
            n = 0
        }
     od
}

proctype crash() {                          /* kill -9 of the first server, at any moment or never */
    if
    :: atomic { discard(0) }
    :: skip
    fi
}

inline fold(s) { view[s] = head; epoch[s] = log_epoch }

proctype take_over() {                      /* the client goes to the second server, because it must or because it likes */
    byte n;
    atomic { connected = NOBODY; asking[0] = false };
#ifdef FOLD_FIRST
    atomic { fold(1) };
    atomic { term++; my_term[1] = term };
#else
    atomic { term++; my_term[1] = term };
    atomic { fold(1) };
#endif
    atomic {                                /* attached: from the number that the client names */
#ifdef NO_RESUME_NUMBER
        cursor[1] = view[1];
#else
        cursor[1] = seen;
#endif
#ifdef RESUME_FROM_START
        cursor[1] = 0;
#endif
        for (n : 1 .. cursor[1]) {
            CLAIM(LOST, got[n] || (kind[n] == delta && made_in[n] < log_epoch))
        }
        n = 0; ready[1] = true; connected = 1
    }
}

init {
    atomic {
        my_term[0] = 1; ready[0] = true;
        run model(0); run notices(0); run barge_in(0); run sender(0);
        run model(1); run notices(1); run barge_in(1); run sender(1);
        run crash(); run take_over()
    }
}

ltl answered { [] ((asking[0] -> <> !asking[0]) && (asking[1] -> <> !asking[1])) }

/* Each of these must be refuted, or the model never gets to where it hurts. */
ltl never_second_cut_after_takeover { [] !(connected == 1 && told == EPOCH_MAX) }
ltl never_an_announced_gap { [] !(told > 0 && seen > 1 && !got[1]) }
