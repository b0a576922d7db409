// The theme searches in a worker. A page that is opened from disk may start none, so its script runs
// in a hidden frame instead, and messages go to and fro as they would with a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      // Of one argument, as in a worker; that of a window would send the message to the frame itself.
      const answer = "postMessage = (said) => parent.postMessage(said, '*')";
      this.frame.srcdoc = `<script>${answer}<\/script><script src="${script}"><\/script>`;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done));
      addEventListener("message", (event) => {
        if (event.source === this.frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.body.append(this.frame);
    }
    postMessage(said) {
      const event = new MessageEvent("message", { data: said });
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(event));
    }
  };
}
