import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { createConnection } from './connection.ts';
import { type CopyMessage, copyMessages, type DescriptorCopies } from './descriptor-copies.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import { longestFlushMs } from './pending-flushes.ts';
import { KeeperError, type KeeperState, type Message, type MessageOf } from './protocol.ts';
import { killProcess, openPeerPidfd, peerCredentials } from './system-calls.ts';
import { within } from './unless-aborted.ts';

/** An agent's side. Every call throws KeeperError, what the signal says, or DeadlineExceeded. */
export interface KeeperClient extends Disposable {
  /** The descriptor stays the caller's. `exists`: it was adopted before, perhaps by a call whose answer got lost. */
  adopt(mount: string, spec: unknown, fd: number, signal: AbortSignal): Promise<void>;
  /** Absent is success. */
  drop(mount: string, signal: AbortSignal): Promise<void>;
  /**
   * Has all that was written put on the server's disk, as far as that is possible within the time. Gives how many files are not
   * whole there: unmounted now, they would lose what was written last. One where nobody answers: there may be some. A mount that
   * is not there has none.
   */
  flush(mount: string, ms: number, signal: AbortSignal): Promise<number>;
  list(signal: AbortSignal): Promise<readonly string[]>;
  status(signal: AbortSignal): Promise<KeeperState>;
  /** Resolves when the program at this path serves. Throws where it cannot, and the one before does. */
  upgrade(program: string, signal: AbortSignal): Promise<void>;
  /** Ends data path and keeper. Mounts that are still there answer ENOTCONN afterwards. */
  end(signal: AbortSignal): Promise<void>;
  /** From now on what it holds is held here, too, in the `copies` that it was connected with. Only of one whose state says `shares`. */
  share(signal: AbortSignal): Promise<void>;
  /**
   * Gives everything to one that has nothing; what is given stays the caller's as well. `occupied`: it has something. `served`: a data path
   * lives that has these mounts.
   */
  restore(everything: HeldDescriptors, signal: AbortSignal): Promise<void>;
  /** For one that does not answer any more. False: it runs where this process cannot end it. */
  kill(): boolean;
}

interface ClientOptions {
  readonly path: string;
  /** The user that the keeper runs as: nobody else is given anything. */
  readonly user: number;
  readonly clock: Clock;
  readonly version: string;
  /** As it is now, and whenever that changes. */
  readonly changed: (state: KeeperState) => void;
  /** The keeper has gone, or was replaced by another: to be connected to again. */
  readonly closed: (why: string) => void;
  /** Where what it holds is held, too. They outlive this connection. */
  readonly copies?: DescriptorCopies | undefined;
}

type Answer = MessageOf<'done' | 'flushed' | 'listed' | 'state'>;
type Unasked<M> = M extends { readonly ask: number } ? Omit<M, 'ask'> : never;
type Question = Unasked<
  MessageOf<'adopt' | 'drop' | 'flush' | 'list' | 'status' | 'upgrade' | 'end' | 'copies' | 'restore'>
>;

const answers = ['done', 'flushed', 'listed', 'state', 'failed'] as const;
const isCopy = (message: MessageOf<(typeof answers)[number]> | CopyMessage): message is CopyMessage =>
  copyMessages.some((kind) => kind === message.kind);

const answerMs = { usual: 20_000, upgrade: 100_000 } as const;
const answerMsOf = (question: Question): number =>
  question.kind === 'flush'
    ? answerMs.usual + question.ms
    : answerMs[question.kind === 'upgrade' ? 'upgrade' : 'usual'];

/** Throws what the system says (ENOENT, ECONNREFUSED: no keeper; EAGAIN: it does not answer). */
export function connectKeeper({ path, user, clock, version, changed, closed, copies }: ClientOptions): KeeperClient {
  const fd = connectTo(path);
  const { uid } = peerCredentials(fd);
  if (uid !== 0 && uid !== user) {
    closeSync(fd);
    throw new KeeperError('denied', 'who listens there is neither root nor the user of the keeper');
  }
  const behind = processAt(fd);
  const connection = createConnection(fd, clock);
  const waiting = new Map<number, PromiseWithResolvers<Answer>>();
  let asked = 0;

  /** Of the same moment for both: what is held meanwhile changes nothing of what is given. */
  async function restore(everything: HeldDescriptors, signal: AbortSignal): Promise<void> {
    if (!connection.isOpen) throw gone();
    sendHeldDescriptors(connection, everything, 'everything');
    await ask({ kind: 'restore' }, signal);
  }

  function heard(message: Answer | MessageOf<'failed'>): void {
    const asker = waiting.get(message.ask);
    if (message.kind === 'state' && message.ask === 0) changed(message.state);
    else if (message.kind !== 'failed') asker?.resolve(message);
    else if (message.ask === 0) connection.close();
    else asker?.reject(new KeeperError(message.reason, message.text));
  }

  async function ask(question: Question, signal: AbortSignal, descriptors: readonly number[] = []): Promise<Answer> {
    if (!connection.isOpen) throw gone();
    const number = ++asked;
    const answer = Promise.withResolvers<Answer>();
    waiting.set(number, answer);
    try {
      connection.send({ ...question, ask: number } as Message, descriptors);
      return await within(answer.promise, answerMsOf(question), clock, signal);
    } finally {
      waiting.delete(number);
    }
  }

  connection.handle({
    accepts: [...answers, ...(copies === undefined ? [] : copyMessages)],
    message: (message, descriptors) => (isCopy(message) ? copies?.take(message, descriptors) : heard(message)),
    closed: (why) => {
      behind?.[Symbol.dispose]();
      for (const asker of waiting.values()) asker.reject(gone());
      closed(why);
    },
  });
  connection.send({ kind: 'hello', role: 'agent', pid: process.pid, version });

  return {
    adopt: async (mount, spec, descriptor, signal) =>
      void (await ask({ kind: 'adopt', mount, spec }, signal, [descriptor])),
    drop: async (mount, signal) => void (await ask({ kind: 'drop', mount }, signal)),
    flush: async (mount, ms, signal) => {
      const answer = await ask({ kind: 'flush', mount, ms: Math.min(Math.round(ms), longestFlushMs) }, signal);
      if (answer.kind !== 'flushed') throw misunderstood();
      return answer.files;
    },
    list: async (signal) => {
      const all: string[] = [];
      for (let more = true; more; ) {
        const answer = await ask({ kind: 'list', after: all.at(-1) ?? '' }, signal);
        if (answer.kind !== 'listed') throw misunderstood();
        all.push(...answer.mounts);
        ({ more } = answer);
      }
      return all;
    },
    status: async (signal) => {
      const answer = await ask({ kind: 'status' }, signal);
      if (answer.kind !== 'state') throw misunderstood();
      return answer.state;
    },
    upgrade: async (program, signal) => void (await ask({ kind: 'upgrade', program }, signal)),
    end: async (signal) => void (await ask({ kind: 'end' }, signal)),
    share: async (signal) => void (await ask({ kind: 'copies' }, signal)),
    restore,
    kill: () => connection.isOpen && behind?.kill() === true,
    [Symbol.dispose]: () => connection.close(),
  };
}

/**
 * Opened with the line: as long as that is open the keeper has not ended, so nobody else can have had its number in between.
 * Undefined: it cannot be seen from here.
 */
function processAt(fd: number): (Disposable & { kill(): boolean }) | undefined {
  try {
    const pidfd = openPeerPidfd(fd);
    if (pidfd === undefined) return undefined;
    return {
      kill: () => {
        try {
          killProcess(pidfd);
          return true;
        } catch {
          // Another user's, of another container, or a kernel or profile that has no such call.
          return false;
        }
      },
      [Symbol.dispose]: () => closeSync(pidfd),
    };
  } catch {
    return undefined;
  }
}

const gone = (): KeeperError => new KeeperError('gone', 'the keeper has gone');
const misunderstood = (): KeeperError => new KeeperError('protocol', 'the keeper answered something else');
