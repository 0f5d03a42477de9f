import { readFileSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { libc } from './libc.ts';

/** Node's own event loop, for whoever waits beside it. */
export interface NodeLoop {
  /** There is something to read while any descriptor of Node's is ready. */
  readonly fd: number;
  /** For how long Node would sleep now, in milliseconds: 0 when it has something to do, -1 without end. */
  sleepMs(): number;
  /** Runs what promises and `process.nextTick` wait for, as Node does after each of its own callbacks. */
  runTicks(): void;
}

/** Of a descriptor that is told once and then not again, though nobody has looked at it: EPOLLET and EPOLLONESHOT. */
const toldOnce = 0xc000_0000;

/** Throws where Node is not as it has to be for that. */
export function openNodeLoop(): NodeLoop {
  // It is the main thread's, and not to be touched by others.
  if (!isMainThread) throw new Error('this is not the main thread');
  const { _tickCallback: runTicks } = process as unknown as { readonly _tickCallback?: () => void };
  if (typeof runTicks !== 'function') throw new Error('process._tickCallback is not there');
  const { func } = libc();
  // Node exports them for programs that wait in a loop of their own.
  const loop: unknown = func('void *uv_default_loop()')();
  const fd: number = func('int uv_backend_fd(void *loop)')(loop);
  const [timeout, updateTime] = [func('int uv_backend_timeout(void *loop)'), func('void uv_update_time(void *loop)')];
  const sleepMs = (): number => {
    updateTime(loop);
    return timeout(loop);
  };
  checkLevels(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'));
  checkLoop(sleepMs);
  return { fd, sleepMs, runTicks };
}

/** We wait in the middle of Node's own turn: what it was told and has not looked at yet must be told to us, too. */
export function checkLevels(about: string): void {
  for (const [, events = ''] of about.matchAll(/^tfd:\s*\d+\s+events:\s*([0-9a-f]+)/gm))
    if ((Number.parseInt(events, 16) & toldOnce) !== 0) throw new Error("Node's loop is told of descriptors only once");
}

/** Node may run in a loop that somebody else made. */
function checkLoop(sleepMs: () => number): void {
  const immediate = setImmediate(() => undefined);
  const isSeen = sleepMs() === 0;
  clearImmediate(immediate);
  if (!isSeen) throw new Error("Node's loop is another one");
}
