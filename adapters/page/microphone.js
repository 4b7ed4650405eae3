// The microphone: asks for it, captures it through the worklet, and reports when it is taken away.

import { noticeCodeOf, Trouble } from "./notices.js";

const CONSTRAINTS = {
  audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
};

export class Microphone {
  /** onChunk({pcm: Int16Array of 100 ms at 24 kHz, levels: RMS per 20 ms}); onLost(): the device went away. */
  constructor({ onChunk, onLost }) {
    this.onChunk = onChunk;
    this.onLost = onLost;
    this.stream = null;
    this.context = null;
    this.source = null;
    this.node = null;
    this.muted = false;
  }

  get isOpen() {
    return this.stream !== null;
  }

  /** Asks the user and starts capturing. Throws Trouble. */
  async open() {
    if (this.isOpen) return;
    if (navigator.mediaDevices?.getUserMedia === undefined) throw new Trouble("microphone_insecure");
    try {
      this.stream = await navigator.mediaDevices.getUserMedia(CONSTRAINTS);
    } catch (error) {
      throw new Trouble(noticeCodeOf(error.name), error);
    }
    const stream = this.stream;
    for (const track of stream.getAudioTracks()) {
      track.onended = () => {
        if (this.stream !== stream) return;
        this.close();
        this.onLost();
      };
    }
    try {
      await this.#capture(stream);
    } catch (error) {
      this.close();
      // The worklet's file could not be fetched.
      throw new Trouble("no_server", error);
    }
    this.setMuted(this.muted);
  }

  // The context is kept when the microphone closes: the next start needs nothing from the server.
  async #capture(stream) {
    if (this.context === null) {
      const context = new AudioContext({ latencyHint: "interactive" });
      await context.audioWorklet.addModule(new URL("capture-worklet.js", import.meta.url));
      this.context = context;
    }
    this.context.resume();
    if (this.stream !== stream) return;
    const node = new AudioWorkletNode(this.context, "duologue-capture", { numberOfInputs: 1, numberOfOutputs: 1 });
    node.port.onmessage = ({ data }) => this.stream === stream && this.onChunk(data);
    this.source = this.context.createMediaStreamSource(stream);
    this.source.connect(node);
    // A node that leads nowhere is not pulled by every browser; its output is silence.
    node.connect(this.context.destination);
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
    this.source?.disconnect();
    this.node?.disconnect();
    this.context?.suspend();
    this.stream = null;
    this.source = null;
    this.node = null;
  }
}
