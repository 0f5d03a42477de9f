import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:net';
import { extname, join } from 'node:path';
import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import { type Answer, maxPendingQuestions, type Question, readAnswer } from './network-messages.ts';

type QuestionFields<A extends Question['ask']> = Omit<Extract<Question, { readonly ask: A }>, 'id' | 'ask'>;

/** A child process inside a network namespace. */
export interface NetworkProcess extends Disposable {
  readonly hasEnded: boolean;
  /** Returns all addresses of the name. Throws the system's error. */
  lookup(what: QuestionFields<'lookup'>, signal: AbortSignal): Promise<readonly string[]>;
  /** Connects in the namespace and hands the socket over to this process. Throws the system's error. */
  connect(to: QuestionFields<'connect'>, signal: AbortSignal): Promise<Socket>;
}

/** The process ended before it was ready. */
export class NamespaceNotEntered extends Error {
  /** The system's error code, if the process could not be started at all. */
  readonly code: string | undefined;
  constructor(message: string, cause: unknown) {
    super(message, { cause });
    this.code = errnoOf(cause);
  }
}

interface PendingQuestion {
  resolve(found: { readonly answer: Answer; readonly socket: Socket | undefined }): void;
  reject(cause: unknown): void;
}

/** A process usually starts within 0.1 s. */
const startTimeoutMs = 10_000;
/** Callers usually give up much earlier. */
const maxAnswerMs = 60_000;
const maxStderrChars = 2_000;

/** Beside this file, in the sources as in the bundle. */
const childProgram = join(import.meta.dirname, `network-child${extname(import.meta.filename)}`);

/** `enter`: a command that runs another one inside the namespace, by exec(2). */
export async function startNetworkProcess(
  enter: readonly [string, ...string[]],
  clock: Clock,
  signal: AbortSignal,
): Promise<NetworkProcess> {
  using limit = clock.deadline(startTimeoutMs, signal);
  limit.signal.throwIfAborted();
  const [file, ...args] = enter;
  const child = spawn(file, [...args, process.execPath, '--disable-warning=ExperimentalWarning', childProgram], {
    // In a group of its own, so that Ctrl-C does not end it before us.
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    env: { PATH: searchPath(), LC_ALL: 'C' },
  });
  const { promise: ready, resolve, reject } = Promise.withResolvers<void>();
  const networkProcess = createNetworkProcess(child, clock, resolve, reject);
  using _ = onAbort(limit.signal, () => reject(limit.signal.reason));
  try {
    await ready;
    return networkProcess;
  } catch (cause) {
    networkProcess[Symbol.dispose]();
    throw cause;
  }
}

function createNetworkProcess(
  child: ChildProcess,
  clock: Clock,
  onReady: () => void,
  onFailed: (cause: NamespaceNotEntered) => void,
): NetworkProcess {
  const pendingQuestions = new Map<number, PendingQuestion>();
  let next = 1;
  let hasEnded = false;

  function end(message: string, cause?: unknown): void {
    hasEnded = true;
    onFailed(new NamespaceNotEntered(message, cause));
    for (const { reject } of pendingQuestions.values()) reject(new Error('the process in the network namespace ended'));
    pendingQuestions.clear();
  }

  child.on('message', (message, handle) => {
    const socket = handle instanceof Socket ? handle : undefined;
    const answer = readAnswer(message);
    if (answer?.kind === 'ready') return onReady();
    const pending = answer === undefined ? undefined : pendingQuestions.get(answer.id);
    // The answer came too late.
    if (answer === undefined || pending === undefined) return void socket?.on('error', () => undefined).destroy();
    pendingQuestions.delete(answer.id);
    pending.resolve({ answer, socket });
  });
  const lastLine = lastStderrLine(child);
  child.once('error', (cause) => end(cause.message, cause));
  child.once('close', () => end(lastLine()));

  async function ask(questionFor: (id: number) => Question, signal: AbortSignal): Promise<AnswerWithSocket> {
    using limit = clock.deadline(maxAnswerMs, signal);
    limit.signal.throwIfAborted();
    if (hasEnded) throw new Error('the process in the network namespace ended');
    if (pendingQuestions.size >= maxPendingQuestions) throw new Error('too many connections are being made at once');
    const id = next++;
    const { promise, resolve, reject } = Promise.withResolvers<AnswerWithSocket>();
    pendingQuestions.set(id, { resolve, reject });
    using _ = onAbort(limit.signal, () => {
      reject(limit.signal.reason);
      send({ id, ask: 'forget' });
    });
    send(questionFor(id));
    try {
      return await promise;
    } finally {
      pendingQuestions.delete(id);
    }
  }

  /** Ignores errors: if a message cannot be sent, the process has ended, and its end is reported. */
  const send = (question: Question): void => {
    if (child.connected) child.send(question, () => undefined);
  };

  return {
    get hasEnded() {
      return hasEnded;
    },
    lookup: async (what, signal) => {
      const { answer } = await ask((id) => ({ id, ask: 'lookup', ...what }), signal);
      if (answer.kind === 'addresses') return answer.addresses;
      throw failureOf(answer);
    },
    connect: async (to, signal) => {
      const { answer, socket } = await ask((id) => ({ id, ask: 'connect', ...to }), signal);
      if (answer.kind === 'connected' && socket !== undefined) return socket;
      throw failureOf(answer);
    },
    [Symbol.dispose]: () => {
      hasEnded = true;
      // SIGKILL, because the process may be stopped. It has nothing to clean up.
      child.kill('SIGKILL');
    },
  };
}

type AnswerWithSocket = Parameters<PendingQuestion['resolve']>[0];

/** The error that the child reported. */
function failureOf(answer: Answer): Error {
  if (answer.kind !== 'failed') return new Error('the connection was lost on its way out of the network namespace');
  return Object.assign(new Error(answer.message), answer.code === undefined ? {} : { code: answer.code });
}

/** The last line of the child's stderr. */
function lastStderrLine(child: ChildProcess): () => string {
  let stderrTail = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    stderrTail = (stderrTail + chunk.toString()).slice(-maxStderrChars);
  });
  return () => stderrTail.trim().split('\n').at(-1) ?? '';
}

/** The PATH of daemons often has no sbin folders, where `ip` is. */
const searchPath = (): string =>
  [process.env['PATH'] ?? '', '/usr/local/sbin', '/usr/sbin', '/usr/bin', '/sbin', '/bin'].filter(Boolean).join(':');
