import { readFileSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { libc } from './libc.ts';

/** Node's own event loop, for code that waits for other descriptors at the same time. */
export interface NodeLoop {
  /** Readable while any of Node's descriptors is ready. */
  readonly fd: number;
  /** How long Node would sleep now, in milliseconds: 0 if it has something to do, -1 without limit. */
  sleepMs(): number;
  /** Runs pending promise callbacks and `process.nextTick` queues, as Node does after each of its own callbacks. */
  runTicks(): void;
}

/** EPOLLET and EPOLLONESHOT: the kernel reports such a descriptor only once, even if no handler has read it. */
const reportedOnce = 0xc000_0000;

/** Throws if this Node does not have the internals that this needs. */
export function openNodeLoop(): NodeLoop {
  // Only the main thread may use the default loop.
  if (!isMainThread) throw new Error('this is not the main thread');
  const { _tickCallback: runTicks } = process as unknown as { readonly _tickCallback?: () => void };
  if (typeof runTicks !== 'function') throw new Error('process._tickCallback is not there');
  const { func } = libc();
  // Node exports these functions for programs that embed it in a loop of their own.
  const loop: unknown = func('void *uv_default_loop()')();
  const fd: number = func('int uv_backend_fd(void *loop)')(loop);
  const [timeout, updateTime] = [func('int uv_backend_timeout(void *loop)'), func('void uv_update_time(void *loop)')];
  const sleepMs = (): number => {
    updateTime(loop);
    return timeout(loop);
  };
  refuseEdgeTriggered(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'));
  requireDefaultLoop(sleepMs);
  return { fd, sleepMs, runTicks };
}

/**
 * We wait in the middle of one of Node's turns. So the kernel must report events again that it reported to Node and that Node has not
 * handled yet.
 */
export function refuseEdgeTriggered(fdinfo: string): void {
  for (const [, events = ''] of fdinfo.matchAll(/^tfd:\s*\d+\s+events:\s*([0-9a-f]+)/gm))
    if ((Number.parseInt(events, 16) & reportedOnce) !== 0)
      throw new Error("Node's loop watches descriptors edge-triggered or one-shot");
}

/** Node may run in another loop than the default one. */
function requireDefaultLoop(sleepMs: () => number): void {
  const immediate = setImmediate(() => undefined);
  const isSeen = sleepMs() === 0;
  clearImmediate(immediate);
  if (!isSeen) throw new Error("Node's loop is another one");
}
