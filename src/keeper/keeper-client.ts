import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { createConnection } from './connection.ts';
import { type CopyMessage, copyMessages, type DescriptorCopies } from './descriptor-copies.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import { maxFlushMs } from './pending-flushes.ts';
import { KeeperError, type KeeperState, type Message, type MessageOf } from './protocol.ts';
import { killProcess, openPeerPidfd, peerCredentials } from './system-calls.ts';
import { withTimeout } from './with-timeout.ts';

/** The agent's side. Every call throws KeeperError, the signal's reason or DeadlineExceeded. */
export interface KeeperClient extends Disposable {
  /** The caller keeps the descriptor. Reason `exists`: adopted before, perhaps by a call whose reply was lost. */
  adopt(mount: string, spec: unknown, fd: number, signal: AbortSignal): Promise<void>;
  /** Idempotent: succeeds if the mount is absent. */
  drop(mount: string, signal: AbortSignal): Promise<void>;
  /**
   * Commits written data on the server within the time, as far as possible. Returns the number of files that are still
   * incomplete there: unmounting now would lose their last writes. Returns 1 if no data path answers, because there may
   * be some, and 0 for a mount that does not exist.
   */
  flush(mount: string, ms: number, signal: AbortSignal): Promise<number>;
  list(signal: AbortSignal): Promise<readonly string[]>;
  status(signal: AbortSignal): Promise<KeeperState>;
  /** Resolves when the program at this path serves. Throws if it cannot; the previous program then keeps serving. */
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /** Stops the data path and the keeper. Remaining mounts then return ENOTCONN. */
  end(signal: AbortSignal): Promise<void>;
  /**
   * Starts copying everything the keeper holds into the `copies` given at connect. Only for a keeper whose state has
   * `shares`.
   */
  share(signal: AbortSignal): Promise<void>;
  /**
   * Restores everything into a keeper that holds nothing. The caller keeps its own descriptors. Reason `occupied`: the
   * keeper holds something; `served`: a live data path already serves these mounts.
   */
  restore(everything: HeldDescriptors, signal: AbortSignal): Promise<void>;
  /** For a keeper that no longer answers. False: it runs where this process may not kill it. */
  kill(): boolean;
}

interface ClientOptions {
  readonly path: string;
  /** The user the keeper runs as. Descriptors are sent to no other user. */
  readonly user: number;
  readonly clock: Clock;
  readonly version: string;
  /** Called with the current state and after every change. */
  readonly changed: (state: KeeperState) => void;
  /** The keeper is gone or was replaced: reconnect. */
  readonly closed: (why: string) => void;
  /** Second copies of the keeper's descriptors. They outlive this connection. */
  readonly copies?: DescriptorCopies | undefined;
}

type Answer = MessageOf<'done' | 'flushed' | 'listed' | 'state'>;
type WithoutAsk<M> = M extends { readonly ask: number } ? Omit<M, 'ask'> : never;
type KeeperRequest = WithoutAsk<
  MessageOf<'adopt' | 'drop' | 'flush' | 'list' | 'status' | 'upgrade' | 'end' | 'copies' | 'restore'>
>;

const answers = ['done', 'flushed', 'listed', 'state', 'failed'] as const;
const isCopy = (message: MessageOf<(typeof answers)[number]> | CopyMessage): message is CopyMessage =>
  copyMessages.some((kind) => kind === message.kind);

const answerTimeoutMs = { default: 20_000, upgrade: 100_000 } as const;
const answerTimeoutOf = (request: KeeperRequest): number =>
  request.kind === 'flush'
    ? answerTimeoutMs.default + request.ms
    : answerTimeoutMs[request.kind === 'upgrade' ? 'upgrade' : 'default'];

/** Throws the system's error (ENOENT, ECONNREFUSED: no keeper; EAGAIN: it does not answer). */
export function connectKeeper({ path, user, clock, version, changed, closed, copies }: ClientOptions): KeeperClient {
  const fd = connectTo(path);
  const { uid } = peerCredentials(fd);
  if (uid !== 0 && uid !== user) {
    closeSync(fd);
    throw new KeeperError('denied', "the process that listens there belongs to neither root nor the keeper's user");
  }
  const keeperProcess = openPeerProcess(fd);
  const connection = createConnection(fd, clock);
  const pendingRequests = new Map<number, PromiseWithResolvers<Answer>>();
  let lastRequest = 0;

  /** Sends a snapshot: changes made while it is sent do not affect it. */
  async function restore(everything: HeldDescriptors, signal: AbortSignal): Promise<void> {
    if (!connection.isOpen) throw keeperGone();
    sendHeldDescriptors(connection, everything, 'everything');
    await sendRequest({ kind: 'restore' }, signal);
  }

  function handleAnswer(message: Answer | MessageOf<'failed'>): void {
    const pending = pendingRequests.get(message.ask);
    if (message.kind === 'state' && message.ask === 0) changed(message.state);
    else if (message.kind !== 'failed') pending?.resolve(message);
    else if (message.ask === 0) connection.close();
    else pending?.reject(new KeeperError(message.reason, message.text));
  }

  async function sendRequest(
    request: KeeperRequest,
    signal: AbortSignal,
    descriptors: readonly number[] = [],
  ): Promise<Answer> {
    if (!connection.isOpen) throw keeperGone();
    const number = ++lastRequest;
    const answer = Promise.withResolvers<Answer>();
    pendingRequests.set(number, answer);
    try {
      connection.send({ ...request, ask: number } as Message, descriptors);
      return await withTimeout(answer.promise, answerTimeoutOf(request), clock, signal);
    } finally {
      pendingRequests.delete(number);
    }
  }

  connection.handle({
    accepts: [...answers, ...(copies === undefined ? [] : copyMessages)],
    message: (message, descriptors) => (isCopy(message) ? copies?.take(message, descriptors) : handleAnswer(message)),
    closed: (why) => {
      keeperProcess?.[Symbol.dispose]();
      for (const pending of pendingRequests.values()) pending.reject(keeperGone());
      closed(why);
    },
  });
  connection.send({ kind: 'hello', role: 'agent', pid: process.pid, version });

  return {
    adopt: async (mount, spec, descriptor, signal) =>
      void (await sendRequest({ kind: 'adopt', mount, spec }, signal, [descriptor])),
    drop: async (mount, signal) => void (await sendRequest({ kind: 'drop', mount }, signal)),
    flush: async (mount, ms, signal) => {
      const answer = await sendRequest({ kind: 'flush', mount, ms: Math.min(Math.round(ms), maxFlushMs) }, signal);
      if (answer.kind !== 'flushed') throw unexpectedReply();
      return answer.files;
    },
    list: async (signal) => {
      const all: string[] = [];
      for (let more = true; more; ) {
        const answer = await sendRequest({ kind: 'list', after: all.at(-1) ?? '' }, signal);
        if (answer.kind !== 'listed') throw unexpectedReply();
        all.push(...answer.mounts);
        ({ more } = answer);
      }
      return all;
    },
    status: async (signal) => {
      const answer = await sendRequest({ kind: 'status' }, signal);
      if (answer.kind !== 'state') throw unexpectedReply();
      return answer.state;
    },
    upgrade: async (program, signal) => void (await sendRequest({ kind: 'upgrade', program }, signal)),
    end: async (signal) => void (await sendRequest({ kind: 'end' }, signal)),
    share: async (signal) => void (await sendRequest({ kind: 'copies' }, signal)),
    restore,
    kill: () => connection.isOpen && keeperProcess?.kill() === true,
    [Symbol.dispose]: () => connection.close(),
  };
}

/**
 * Opened with the connection. While the connection is open the keeper has not exited, so its pid cannot have been
 * reused. Undefined: the process is not visible from here.
 */
function openPeerProcess(fd: number): (Disposable & { kill(): boolean }) | undefined {
  try {
    const pidfd = openPeerPidfd(fd);
    if (pidfd === undefined) return undefined;
    return {
      kill: () => {
        try {
          killProcess(pidfd);
          return true;
        } catch {
          // Another user's process, another container, or a kernel or seccomp profile without this call.
          return false;
        }
      },
      [Symbol.dispose]: () => closeSync(pidfd),
    };
  } catch {
    return undefined;
  }
}

const keeperGone = (): KeeperError => new KeeperError('gone', 'the keeper is gone');
const unexpectedReply = (): KeeperError => new KeeperError('protocol', 'the keeper sent an unexpected reply');
