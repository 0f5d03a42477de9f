import type { Http2Session } from 'node:http2';
import type { Clock } from '#base/clock.ts';

/** The interval of pings, and the timeout for the answer: a silent peer is noticed within 20 s. */
const pingMs = 10_000;

/** Destroys a session whose peer stopped answering. */
export function keepPinging(session: Http2Session, clock: Clock, lost: () => void): Disposable {
  let next: Disposable | undefined;
  let isOver = false;
  const again = (): void => {
    next = clock.after(pingMs, ping);
  };
  const gone = (): void => {
    if (isOver) return;
    isOver = true;
    lost();
    session.destroy();
  };
  function ping(): void {
    if (isOver || session.destroyed) return;
    next = clock.after(pingMs, gone);
    const late = next;
    const isSent = session.ping((error) => {
      late[Symbol.dispose]();
      if (isOver || session.destroyed) return;
      if (error === null) again();
      else gone();
    });
    // `ping` returns false if too many pings are unanswered.
    if (!isSent) gone();
  }
  again();
  return {
    [Symbol.dispose]: () => {
      isOver = true;
      next?.[Symbol.dispose]();
    },
  };
}
