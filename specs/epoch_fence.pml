/* The three fences of a session: epoch, generation, term.
 *
 * One client, two servers, one log. The stream is the log: a sender is a cursor over it. The first server may crash, fail
 * an append, or live on without knowing that the client left it; the second one takes over and goes on with the stream. A
 * client whose socket was closed comes back once more, and is sent again what it lacks.
 *
 * A client that does not read is a sender that is not scheduled. What then waits for it is bounded (OUTBOX_MAX frames): the
 * answer that is being made fails, on the same path as every other cut; if that does not help, the client is sent away; if
 * there is none, the oldest frames leave, and who lacks them is told so. The session lives.
 *
 * What must hold, whatever the interleaving (names as in docs/guarantees.md):
 *
 *   no_stale_audio   once the client was told that an answer was cut, no audio of it arrives          STALE
 *   heard_only       what the log says was never sent, was never sent                                 DISHONEST
 *   exactly_once     nothing is lost but audio that was cut, and nothing comes twice                  LOST, DOUBLED
 *   one_writer       after the first event of a term, none of a lower term                            SPLIT
 *   output_fence     audio of an old epoch never becomes an event                                     LATE
 *   answered         every barge-in is answered, or its connection is gone                            (ltl below)
 *   bounded          what waits for a client that does not read is bounded; what is sent again at a
 *                    resume fails no answer                                                           BOUNDED, UNFAIR
 *   gets_on          a client that reads again gets all that waits, or its connection is gone         (ltl below)
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
 *   NO_BOUND          nobody looks at how much waits
 *   PURGE_NOTICES     a full outbox is emptied of everything, and not of the answer that failed
 *   COUNT_REPLAY      what is sent again to a client that came back counts as waiting
 *   LET_GO_SILENTLY   frames that had to leave are not missed at a resume
 *   STAY_FULL         the sender is not woken when the cut of an overflow is durable
 *
 * NO_BARGE_IN is no mutant: whoever never interrupts finds every cut to be an overflow's.
 *
 * A step adds one frame here. So the product's rule that the newest step's frames do not count as waiting yet is OUTBOX_MAX.
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
#define BOUNDED   7
#define UNFAIR    8
#ifndef ONLY
#define ONLY      0
#endif
#define CLAIM(number, holds) assert((ONLY != 0 && ONLY != number) || (holds))

#ifndef LOG_MAX
#define LOG_MAX   5         /* events in the log, 5 or 7; the last EPOCH_MAX places are kept for cuts */
#endif
#define EPOCH_MAX 2         /* cuts explored */
#ifndef OUTBOX_MAX
#define OUTBOX_MAX LOG_MAX  /* frames that may wait: all there are, unless a row of check.sh says less */
#endif
#define SLACK     2         /* to fail the answer and to hang up take a turn each, which adds a frame; notices of cuts apart */
#define NOBODY    2

mtype = { delta, notice, cut };

/* The log: durable, shared, numbered from 1. */
mtype kind[LOG_MAX + 1];
byte  made_in[LOG_MAX + 1];                 /* the epoch of that event */
byte  cut_cursor[EPOCH_MAX + 1];            /* per epoch: the cursor that its epoch_bump recorded */
byte  head = 0, log_epoch = 0, term = 1;

/* What each server believes. */
byte  my_term[2], epoch[2], view[2], cursor[2];
byte  fence_cursor[2];                      /* where the cut came that is not durable yet */
byte  replayed[2];                          /* frames up to this number are sent again, for a client that came back */
byte  gone[2];                              /* frames up to this number had to leave: who lacks them must resynchronise */
bool  ready[2], fencing[2];
byte  owes[2];                              /* cuts that are to be made durable */
#ifdef STAY_FULL
bool  jammed[2];
#endif

/* The client. */
byte  connected = 0;                        /* the server that holds its socket, or NOBODY */
byte  seen = 0;                             /* the last number it got */
byte  told = 0;                             /* the highest epoch that it was told of by a cut */
bool  got[LOG_MAX + 1];

/* Ghosts. */
byte  last_writer = 1;
bool  asking[2];
hidden byte i, waiting, fresh, uttered, answering, next;    /* for use within one atomic step: no part of the state */

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

inline hang_up(s) {
    asking[s] = false;
    if :: connected == s -> connected = NOBODY :: else fi
}

inline discard(s) {                         /* the actor and its memory go; the socket closes; nothing is rolled back */
    hang_up(s);
    my_term[s] = 0; ready[s] = false; owes[s] = 0; fencing[s] = false;
    epoch[s] = 0; view[s] = 0; cursor[s] = 0; fence_cursor[s] = 0; replayed[s] = 0; gone[s] = 0
}

inline fence(s) {                           /* in memory, at once: the one path of every cut */
    fencing[s] = true; owes[s]++; epoch[s]++; fence_cursor[s] = cursor[s]
}

inline weigh(s) {                           /* what waits, the dead not counted; fresh: of that, what is not sent again;
                                               uttered: of that, what is no notice of a cut */
    waiting = 0; fresh = 0; uttered = 0;
    for (i : 1 .. view[s]) {
        if
        :: i > cursor[s] && i > gone[s] && !DEAD(s, i) ->
#ifndef COUNT_REPLAY
            if :: i > replayed[s] -> waiting++ :: else fi;
#else
            waiting++;
#endif
            if :: i > replayed[s] -> fresh++ :: else fi;
            if :: i > replayed[s] && kind[i] != cut -> uttered++ :: else fi
        :: else
        fi
    }
}

inline let_go(s) {                          /* nobody is there: the oldest frames leave */
    gone[s] = (gone[s] < cursor[s] -> cursor[s] : gone[s]);
    gone[s] = (gone[s] < replayed[s] -> replayed[s] : gone[s]);
    do
    :: waiting > OUTBOX_MAX -> gone[s]++;
        if :: !DEAD(s, gone[s]) -> waiting-- :: else fi
    :: else -> break
    od
}

inline check_bound(s) {                     /* in the same turn as the append */
    weigh(s);
#ifndef NO_BOUND
    if
    :: waiting <= OUTBOX_MAX || fencing[s] -> skip
    :: else ->
        CLAIM(UNFAIR, fresh > OUTBOX_MAX);
        answering = 0;
        for (i : cursor[s] + 1 .. view[s]) { if :: kind[i] == delta && made_in[i] == epoch[s] -> answering = 1 :: else fi };
        if
        :: answering == 1 && epoch[s] < EPOCH_MAX -> fence(s);
#ifdef STAY_FULL
            jammed[s] = true;
#endif
#ifdef PURGE_NOTICES
            cursor[s] = view[s]
#endif
        :: (answering == 0 || epoch[s] == EPOCH_MAX) && connected == s -> hang_up(s)     /* a slow reader */
        :: (answering == 0 || epoch[s] == EPOCH_MAX) && connected != s -> let_go(s)
        fi
    fi;
#endif
    weigh(s);
    CLAIM(BOUNDED, uttered <= OUTBOX_MAX + SLACK);
    i = 0; waiting = 0; fresh = 0; uttered = 0; answering = 0
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
               :: else -> if :: head < LOG_MAX - EPOCH_MAX -> append(s, delta, e); check_bound(s) :: else fi
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
            :: else -> append(s, notice, epoch[s]); check_bound(s)
            fi }
     od
}

proctype cuts(byte s) {                     /* fenced in memory at once (here, or by an overflow); then made durable */
end: do
#ifndef NO_BARGE_IN
     :: atomic { ALIVE(s) && connected == s && log_epoch < EPOCH_MAX && epoch[s] < EPOCH_MAX ->
            asking[s] = true; fence(s);                               /* a barge-in */
#ifdef PURGE_ONLY
            cursor[s] = view[s]
#endif
        }
#endif
     :: atomic { ALIVE(s) && owes[s] > 0 ->
            if
            :: discard(s)                                             /* the append fails: disk, connection */
#ifndef NO_TERM_CHECK
            :: my_term[s] != term -> discard(s)
            :: my_term[s] == term ->
#else
            :: head < LOG_MAX ->
#endif
               owes[s]--; next = epoch[s] - owes[s];
               cut_cursor[next] = fence_cursor[s]; append(s, cut, next); next = 0;
               if :: owes[s] == 0 -> fence_cursor[s] = 0 :: else fi;
#ifdef STAY_FULL
               if :: !jammed[s] && owes[s] == 0 -> fencing[s] = false :: else fi
#else
#ifndef STAY_SILENT
               if :: owes[s] == 0 -> fencing[s] = false :: else fi
#else
               skip
#endif
#endif
            fi
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
                  for (i : seen + 1 .. n - 1) {
                      CLAIM(LOST, kind[i] == delta && made_in[i] < log_epoch)
                  };
                  i = 0; seen = n; got[n] = true;
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

inline attach(s) {                          /* from the number that the client names */
#ifdef NO_RESUME_NUMBER
    cursor[s] = view[s];
#else
    cursor[s] = (seen < gone[s] -> gone[s] : seen);
#endif
#ifdef RESUME_FROM_START
    cursor[s] = 0;
#endif
    for (i : 1 .. cursor[s]) {
        CLAIM(LOST, got[i] || (kind[i] == delta && made_in[i] < log_epoch))
    }
    i = 0; replayed[s] = view[s]; ready[s] = true; connected = s
}

proctype client() {                         /* goes to the second server, because it must or because it likes; and again */
    atomic { connected = NOBODY; asking[0] = false };
#ifdef FOLD_FIRST
    atomic { fold(1) };
    atomic { term++; my_term[1] = term };
#else
    atomic { term++; my_term[1] = term };
    atomic { fold(1) };
#endif
    atomic { attach(1) };
end: atomic { ALIVE(1) && connected == NOBODY ->
        if
#ifndef LET_GO_SILENTLY
        :: seen < gone[1] -> skip                                     /* resync_required: no promise of this stream */
#endif
        :: else -> attach(1)
        fi
    }
}

init {
    atomic {
        my_term[0] = 1; ready[0] = true;
        run model(0); run notices(0); run cuts(0); run sender(0);
        run model(1); run notices(1); run cuts(1); run sender(1);
        run crash(); run client()
    }
}

#define WAITS(s, n) (n > cursor[s] && n <= view[s] && !DEAD(s, n))
#if LOG_MAX == 7
#define LAST_WAIT(s) (WAITS(s, 6) || WAITS(s, 7))
#else
#define LAST_WAIT(s) false
#endif
#define BEHIND(s)  (HOLDS(s) && (WAITS(s, 1) || WAITS(s, 2) || WAITS(s, 3) || WAITS(s, 4) || WAITS(s, 5) || LAST_WAIT(s)))

ltl gets_on { [] ((BEHIND(0) -> <> !BEHIND(0)) && (BEHIND(1) -> <> !BEHIND(1))) }
ltl answered { [] ((asking[0] -> <> !asking[0]) && (asking[1] -> <> !asking[1])) }

/* Each of these must be refuted, or the model never gets to where it hurts. */
ltl never_second_cut_after_takeover { [] !(connected == 1 && told == EPOCH_MAX) }
ltl never_lives_on_after_an_overflow { [] !(told > 0 && kind[seen] == delta && made_in[seen] == told) }
ltl never_lets_go { [] !(gone[1] > seen) }
ltl never_an_announced_gap { [] !(told > 0 && seen > 1 && !got[1]) }
