import { closeSync } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { createCollector, type Estate, mostMounts } from './estate.ts';
import type { Line } from './line.ts';
import { KeeperError, type KeeperState, longestSpec, type Message, type MessageOf } from './protocol.ts';
import type { Supervisor } from './supervise.ts';

/** What an agent can ask. */
const questions = ['adopt', 'drop', 'flush', 'list', 'status', 'upgrade', 'end', 'copies', 'restore'] as const;
type Question = MessageOf<(typeof questions)[number]>;
/** What comes before it asks to have it restored. */
const given = ['everything', 'add', 'holding'] as const;
type Given = MessageOf<(typeof given)[number]>;

export interface DeskPorts {
  readonly clock: Clock;
  readonly log: Log;
  /** When this keeper is in charge. Throws while it hands over. */
  readonly inCharge: () => Promise<{ readonly supervisor: Supervisor; readonly estate: Estate }>;
  readonly state: () => KeeperState;
  readonly end: (signal: AbortSignal) => Promise<void>;
  /** Whoever asked for the end has been told. */
  readonly ended: () => void;
  /** Sends everything, now and whenever it changes. */
  readonly share: (line: Line) => void;
  /** The estate is not the caller's any more, whatever comes of it. */
  readonly restore: (everything: Estate) => Promise<void>;
  readonly closed: (line: Line) => void;
}

const patienceMs = { usual: 15_000, upgrade: 90_000 } as const;
const patienceFor = (question: Question): number =>
  question.kind === 'flush'
    ? patienceMs.usual + question.ms
    : patienceMs[question.kind === 'upgrade' ? 'upgrade' : 'usual'];
const mostListed = 200;

/** Answers one agent. */
export function attend(line: Line, ports: DeskPorts): void {
  const { clock, log, inCharge, state, end, ended, share, closed } = ports;
  const gone = new AbortController();
  let collector = createCollector();
  let everything: Estate | undefined;

  function take(message: Given, descriptors: number[]): void {
    if (message.kind === 'everything') forgetGiven();
    everything = collector.take(message, descriptors);
  }

  function forgetGiven(): void {
    collector[Symbol.dispose]();
    everything?.[Symbol.dispose]();
    [collector, everything] = [createCollector(), undefined];
  }

  async function restore(): Promise<void> {
    const whole = everything;
    everything = undefined;
    if (whole === undefined) throw new KeeperError('invalid', 'there is nothing that could be restored');
    await ports.restore(whole);
  }

  async function done(question: Question, descriptors: number[], signal: AbortSignal): Promise<Message> {
    const { ask } = question;
    switch (question.kind) {
      case 'adopt':
        await adopt(question, descriptors.shift() ?? -1, signal);
        return { kind: 'done', ask };
      case 'drop':
        (await unlessAborted(inCharge(), signal)).supervisor.remove(question.mount);
        return { kind: 'done', ask };
      case 'flush': {
        const { supervisor } = await unlessAborted(inCharge(), signal);
        return { kind: 'flushed', ask, files: await supervisor.flush(question.mount, question.ms, signal) };
      }
      case 'list':
        return listed(question, (await unlessAborted(inCharge(), signal)).estate);
      case 'status':
        return { kind: 'state', ask, state: state() };
      case 'upgrade':
        await (await unlessAborted(inCharge(), signal)).supervisor.upgrade(question.program, signal);
        return { kind: 'done', ask };
      case 'end':
        await end(signal);
        return { kind: 'done', ask };
      case 'copies':
        await unlessAborted(inCharge(), signal);
        share(line);
        return { kind: 'done', ask };
      case 'restore':
        await restore();
        return { kind: 'done', ask };
      default:
        return question satisfies never;
    }
  }

  async function adopt({ mount, spec }: MessageOf<'adopt'>, fd: number, signal: AbortSignal): Promise<void> {
    try {
      if (Buffer.byteLength(JSON.stringify(spec)) > longestSpec)
        throw new KeeperError('invalid', 'the spec is too long');
      const { supervisor, estate } = await unlessAborted(inCharge(), signal);
      if (estate.mounts.has(mount)) throw new KeeperError('exists', 'there is a mount of that name already');
      if (estate.mounts.size >= mostMounts) throw new KeeperError('full', 'there are too many mounts');
      supervisor.add({ id: mount, spec, fd });
    } catch (cause) {
      closeSync(fd);
      throw cause;
    }
  }

  async function answer(question: Question, descriptors: number[]): Promise<void> {
    const { ask, kind } = question;
    using limit = clock.deadline(patienceFor(question), gone.signal);
    try {
      line.send(await done(question, descriptors, limit.signal));
      if (kind === 'end') ended();
    } catch (cause) {
      const { reason, text } = failureOf(cause);
      log.warn('an agent was refused', { asked: kind, reason });
      line.send({ kind: 'failed', ask, reason, text });
    }
  }

  line.handle({
    accepts: [...questions, ...given],
    message: (message, descriptors) =>
      isGiven(message) ? take(message, descriptors) : void answer(message, descriptors),
    closed: () => {
      forgetGiven();
      gone.abort(new KeeperError('gone', 'the agent has gone'));
      closed(line);
    },
  });
  line.send({ kind: 'state', ask: 0, state: state() });
}

const isGiven = (message: Question | Given): message is Given => given.some((kind) => kind === message.kind);

function listed({ ask, after }: MessageOf<'list'>, { mounts }: Estate): Message {
  const names = [...mounts.keys()].filter((name) => name > after).sort();
  return { kind: 'listed', ask, mounts: names.slice(0, mostListed), more: names.length > mostListed };
}

/** Only what is ours is told: another's message may quote what is secret. */
function failureOf(cause: unknown): { readonly reason: string; readonly text: string } {
  if (cause instanceof KeeperError) return { reason: cause.reason, text: cause.message };
  if (cause instanceof DeadlineExceeded) return { reason: 'deadline', text: cause.message };
  return { reason: 'internal', text: 'the keeper failed' };
}
