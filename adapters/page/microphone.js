// The microphone: asks for it, captures it through the worklet, and reports when it is taken away.

import { noticeCodeOf } from "./notices.js";

const CONSTRAINTS = {
  audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
};

/** The microphone cannot be had; ``code`` is one of notices.js. */
export class MicrophoneError extends Error {
  constructor(code, cause) {
    super(code, { cause });
    this.code = code;
  }
}

export class Microphone {
  /** onChunk({pcm: Int16Array of 100 ms at 24 kHz, levels: RMS per 20 ms}); onLost(): the device went away. */
  constructor({ onChunk, onLost }) {
    this.onChunk = onChunk;
    this.onLost = onLost;
    this.stream = null;
    this.context = null;
    this.muted = false;
  }

  get isOpen() {
    return this.stream !== null;
  }

  /** Asks the user and starts capturing. Throws MicrophoneError. */
  async open() {
    if (this.isOpen) return;
    if (navigator.mediaDevices?.getUserMedia === undefined) throw new MicrophoneError("microphone_insecure");
    try {
      this.stream = await navigator.mediaDevices.getUserMedia(CONSTRAINTS);
    } catch (error) {
      throw new MicrophoneError(noticeCodeOf(error.name), error);
    }
    const stream = this.stream;
    for (const track of stream.getAudioTracks()) {
      track.onended = () => {
        if (this.stream !== stream) return;
        this.close();
        this.onLost();
      };
    }
    await this.#capture(stream);
    this.setMuted(this.muted);
  }

  async #capture(stream) {
    const context = new AudioContext({ latencyHint: "interactive" });
    this.context = context;
    await context.audioWorklet.addModule(new URL("capture-worklet.js", import.meta.url));
    await context.resume();
    if (this.stream !== stream) return;
    const node = new AudioWorkletNode(context, "duologue-capture", { numberOfInputs: 1, numberOfOutputs: 1 });
    node.port.onmessage = ({ data }) => this.stream === stream && this.onChunk(data);
    context.createMediaStreamSource(stream).connect(node);
    // A node that leads nowhere is not pulled by every browser; its output is silence.
    node.connect(context.destination);
    this.node = node;
  }

  /** Muted: the stream goes on as silence, so the clock of the input does not stop. */
  setMuted(muted) {
    this.muted = muted;
    for (const track of this.stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.node?.port.postMessage({ type: "stop" });
    this.context?.close();
    this.stream = null;
    this.context = null;
    this.node = null;
  }
}
