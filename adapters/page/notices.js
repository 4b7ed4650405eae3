// What the page says when something is wrong: what happened, and what to do next.

const NOTICES = {
  microphone_denied: {
    title: "The microphone is blocked",
    body: "Allow it for this page: select the microphone or lock symbol in the address bar, then start again. Until then you can type.",
    action: "start",
  },
  microphone_missing: {
    title: "No microphone found",
    body: "Connect one, or switch it on in your system’s sound settings, then start again. Until then you can type.",
    action: "start",
  },
  microphone_busy: {
    title: "The microphone is in use",
    body: "Another program holds it. Close that program or its call, then start again. Until then you can type.",
    action: "start",
  },
  microphone_insecure: {
    title: "The microphone needs a safe address",
    body: "Browsers give it only to https pages and to localhost. Open this page over https, or on the server’s own machine. Typing works here, too.",
  },
  microphone_lost: {
    title: "The microphone went away",
    body: "Connect it again and press Start. The conversation is still there, and you can type.",
    action: "start",
  },
  no_sound: {
    title: "No sound comes out",
    body: "The browser found no sound device. Connect or switch on a loudspeaker or headphones, then end this conversation and start again. Typing works without.",
  },
  no_server: {
    title: "The server does not answer",
    body: "See that “duologue serve” is running and that this computer can reach it, then try again.",
    action: "retry",
  },
  connection_lost: {
    title: "The connection is gone",
    body: "The server could not be reached for a minute. Check the network, then try again.",
    action: "retry",
  },
  loading: {
    title: "The server is still loading its model",
    body: "That takes up to a minute on most machines. Try again in a moment.",
    action: "retry",
    calm: true,
  },
  draining: {
    title: "The server is stopping",
    body: "It takes no new conversation. Try again once it is back.",
    action: "retry",
  },
  runtime_restarting: {
    title: "The model is starting again",
    body: "Its process had ended. Try again in a moment; if this stays, look into the server’s log.",
    action: "retry",
    calm: true,
  },
  store_unavailable: {
    title: "The server cannot write its log",
    body: "It begins no conversation that it could not keep. Whoever runs it sees why at /readyz.",
    action: "retry",
  },
  resource_exhausted: {
    title: "All places are taken",
    body: "The server holds as many conversations as it can. Try again in a moment.",
    action: "retry",
  },
  replaced: {
    title: "The conversation goes on in another window",
    body: "You can close this one, or begin a new conversation here.",
    action: "start",
    calm: true,
  },
  restarted: {
    title: "A new conversation has begun",
    body: "The connection was away for too long to go on with the old one. What was said stays on this page, but the assistant does not know it any more.",
    calm: true,
    passing: true,
  },
  idle: {
    title: "The conversation was closed after a long silence",
    body: "Start again whenever you like.",
    action: "start",
    calm: true,
  },
  shutdown: {
    title: "The server is stopping",
    body: "It ended this conversation. Start again once it is back.",
    action: "start",
  },
  ended: { title: "The conversation has ended", body: "Start again whenever you like.", action: "start", calm: true },
  answer_broken: {
    title: "The answer broke off",
    body: "Something failed on the server in mid-answer. Ask again; if it keeps happening, look into the server’s log.",
    passing: true,
  },
  playback_overflow: {
    title: "Too much audio at once",
    body: "More came in than this page can hold, and some was left out. Interrupt the answer and ask again.",
    passing: true,
  },
  input_backpressure: {
    title: "The server cannot keep up",
    body: "Some of what you said was left out. Wait for the answer, then say it again.",
    passing: true,
  },
  key_needed: {
    title: "The server asks for a key",
    body: "This page has none, or not the right one. Add #key=… to its address, with the key that the server was started with, then try again.",
    action: "retry",
  },
  refused: {
    title: "The server refused the conversation",
    body: "Reload the page; if that does not help, look into the server’s log.",
    action: "retry",
  },
};

/** Something cannot be done, for the reason ``code``: one of the notices here. */
export class Trouble extends Error {
  constructor(code, cause) {
    super(code, { cause });
    this.code = code;
  }
}

// Races that are nobody's fault: the answer had ended just when it was cut.
const HARMLESS = new Set([
  "response_not_active",
  "response_cancel_not_active",
  "input_audio_buffer_commit_empty",
  "input_audio_buffer_empty",
]);

const ERROR_NAMES = {
  NotAllowedError: "microphone_denied",
  SecurityError: "microphone_denied",
  NotFoundError: "microphone_missing",
  OverconstrainedError: "microphone_missing",
  NotReadableError: "microphone_busy",
  AbortError: "microphone_busy",
};

const REASONS = {
  stopped: null,
  client_close: null,
  idle_ttl_expired: "idle",
  disconnect_grace_expired: "ended",
  pause_expired: "idle",
  session_expired: "ended",
};

/** The code for what getUserMedia threw. */
export function noticeCodeOf(errorName) {
  return ERROR_NAMES[errorName] ?? "microphone_busy";
}

/**
 * The notice for a code, or null when there is nothing to say. ``final``: the conversation is over, so an unknown code
 * still needs a way on. {title, body, action: start | retry | undefined, calm, passing, code}
 */
export function noticeFor(code, message = "", final = false) {
  const known = code in REASONS ? REASONS[code] : code;
  if (known === null || HARMLESS.has(known)) return null;
  const notice = NOTICES[known];
  if (notice !== undefined) return { code: known, ...notice };
  if (final) return { ...NOTICES.ended, code: known, calm: false, body: `${sentence(message || known)} Start again, or look into the server’s log.` };
  return { code: known, title: "The server reports a problem", body: `${sentence(message || known)} The conversation goes on.`, passing: true };
}

function sentence(text) {
  const plain = text.replaceAll("_", " ").trim();
  return /[.!?]$/.test(plain) ? plain : `${plain}.`;
}
