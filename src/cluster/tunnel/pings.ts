import type { Http2Session } from 'node:http2';
import type { Clock } from '#base/clock.ts';

/** The interval of pings, and the timeout for the answer: a silent peer is noticed within 20 s. */
const pingMs = 10_000;

/** Destroys a session whose peer stopped answering. */
export function keepPinging(session: Http2Session, clock: Clock, onLost: () => void): Disposable {
  let timer: Disposable | undefined;
  let isOver = false;
  const schedulePing = (): void => {
    timer = clock.after(pingMs, ping);
  };
  const handleLoss = (): void => {
    if (isOver) return;
    isOver = true;
    onLost();
    session.destroy();
  };
  function ping(): void {
    if (isOver || session.destroyed) return;
    timer = clock.after(pingMs, handleLoss);
    const answerTimeout = timer;
    const isSent = session.ping((error) => {
      answerTimeout[Symbol.dispose]();
      if (isOver || session.destroyed) return;
      if (error === null) schedulePing();
      else handleLoss();
    });
    // `ping` returns false if too many pings are unanswered.
    if (!isSent) handleLoss();
  }
  schedulePing();
  return {
    [Symbol.dispose]: () => {
      isOver = true;
      timer?.[Symbol.dispose]();
    },
  };
}
