// What goes over the wire, as small pure functions.

export const AUDIO_RATE = 24_000;
export const CHUNK_MS = 100;
// Used until the server recommends another figure in its session object.
export const PREBUFFER_MS_DEFAULT = 120;

const BASE64_SLICE = 8_192;

/** The session that this page asks for. */
export function sessionRequest() {
  return {
    type: "realtime",
    audio: {
      input: { format: { type: "audio/pcm", rate: AUDIO_RATE }, turn_detection: { type: "server_vad" } },
      output: { format: { type: "audio/pcm", rate: AUDIO_RATE } },
    },
  };
}

/** The socket's address on the server that gave out the page. ``place`` is a Location. */
export function socketUrl(place) {
  const scheme = place.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${place.host}/v1/realtime?duplex=1&autostart=0`;
}

/**
 * Subprotocols that carry the key of a server that asks for one. The key comes from the address's fragment
 * (``#key=...``), which browsers never send anywhere.
 */
export function socketProtocols(place) {
  const key = new URLSearchParams(place.hash.slice(1)).get("key");
  return key === null ? [] : ["realtime", `openai-insecure-api-key.${key}`];
}

/** A function that gives a new id at each call: unguessable prefix, then a counter. */
export function idMaker(kind, random = Math.random) {
  const prefix = Math.floor(random() * 2 ** 40).toString(36).padStart(8, "0");
  let count = 0;
  return () => `${kind}_${prefix}_${(count += 1)}`;
}

/** Int16Array -> base64 of its little-endian bytes. */
export function pcm16ToBase64(pcm) {
  const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  let text = "";
  for (let start = 0; start < bytes.length; start += BASE64_SLICE) {
    text += String.fromCharCode(...bytes.subarray(start, start + BASE64_SLICE));
  }
  return btoa(text);
}

/** base64 of little-endian pcm16 -> Float32Array in [-1, 1). A trailing odd byte is left out. */
export function base64ToFloat(text) {
  const raw = atob(text);
  const samples = new Float32Array(raw.length >> 1);
  for (let i = 0; i < samples.length; i += 1) {
    const value = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    samples[i] = (value >= 0x8000 ? value - 0x10000 : value) / 0x8000;
  }
  return samples;
}

export function samplesToMs(samples, rate = AUDIO_RATE) {
  return (samples * 1000) / rate;
}
