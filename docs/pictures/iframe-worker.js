/* A page that is opened from the disk may start no worker, and the search is one.  So it runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      frame.contentDocument.open()
      frame.contentDocument.close() /* the empty page stays: no browser puts another one in its place */
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.ready = this.load(url)
    }

    load(url) {
      const script = this.inside.document.createElement("script")
      script.src = url
      return new Promise((done, failed) => {
        script.onload = done
        script.onerror = failed
        this.inside.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
