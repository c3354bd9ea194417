// A login may end while a page is open: in another tab, after twelve hours, with a new dashboard.
// While a socket that was there is away, look whether one has to log in again: the page then leads
// to it, and what it showed is gone.
const AGAIN_MS = 1500;

async function look() {
  if (!window.did_handshake || window.socket.connected) return;
  const answer = await fetch(import.meta.url, { cache: "no-store" }).catch(() => null);
  if (answer?.status === 401) location.reload();
}

setInterval(look, AGAIN_MS);
