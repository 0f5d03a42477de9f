import { closeSync } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Connection } from './connection.ts';
import { createCollector, type HeldDescriptors, maxMounts } from './held-descriptors.ts';
import { KeeperError, type KeeperState, type Message, type MessageOf, maxSpecBytes } from './protocol.ts';
import type { Supervisor } from './supervisor.ts';

/** Requests of an agent. */
const requestKinds = ['adopt', 'drop', 'flush', 'list', 'status', 'upgrade', 'end', 'copies', 'restore'] as const;
type AgentRequest = MessageOf<(typeof requestKinds)[number]>;
/** Messages that precede a `restore` request. */
const transferKinds = ['everything', 'add', 'holding'] as const;
type Transfer = MessageOf<(typeof transferKinds)[number]>;

export interface AgentConnectionPorts {
  readonly clock: Clock;
  readonly log: Log;
  /** Resolves when this keeper is in charge. Throws during a handover. */
  readonly activeKeeper: () => Promise<{ readonly supervisor: Supervisor; readonly held: HeldDescriptors }>;
  readonly state: () => KeeperState;
  readonly end: (signal: AbortSignal) => Promise<void>;
  /** Called when the agent that requested the end has its reply. */
  readonly ended: () => void;
  /** Sends everything now, and every later change. */
  readonly share: (connection: Connection) => void;
  /** Takes ownership of the descriptors, even if it fails. */
  readonly restore: (everything: HeldDescriptors) => Promise<void>;
  readonly closed: (connection: Connection) => void;
}

const timeoutMs = { default: 15_000, upgrade: 90_000 } as const;
const timeoutFor = (request: AgentRequest): number =>
  request.kind === 'flush'
    ? timeoutMs.default + request.ms
    : timeoutMs[request.kind === 'upgrade' ? 'upgrade' : 'default'];
const maxListedMounts = 200;

/** Handles the requests of one agent. */
export function serveAgent(connection: Connection, ports: AgentConnectionPorts): void {
  const { clock, log, activeKeeper, state, end, ended, share, closed } = ports;
  const agentGone = new AbortController();
  let collector = createCollector();
  let everything: HeldDescriptors | undefined;

  function takeTransfer(message: Transfer, descriptors: number[]): void {
    if (message.kind === 'everything') discardTransfer();
    everything = collector.take(message, descriptors);
  }

  function discardTransfer(): void {
    collector[Symbol.dispose]();
    everything?.[Symbol.dispose]();
    [collector, everything] = [createCollector(), undefined];
  }

  async function restore(): Promise<void> {
    const transferred = everything;
    everything = undefined;
    if (transferred === undefined) throw new KeeperError('invalid', 'nothing was transferred to restore');
    await ports.restore(transferred);
  }

  async function handleRequest(request: AgentRequest, descriptors: number[], signal: AbortSignal): Promise<Message> {
    const { ask } = request;
    switch (request.kind) {
      case 'adopt':
        await adopt(request, descriptors.shift() ?? -1, signal);
        return { kind: 'done', ask };
      case 'drop':
        (await unlessAborted(activeKeeper(), signal)).supervisor.remove(request.mount);
        return { kind: 'done', ask };
      case 'flush': {
        const { supervisor } = await unlessAborted(activeKeeper(), signal);
        return { kind: 'flushed', ask, files: await supervisor.flush(request.mount, request.ms, signal) };
      }
      case 'list':
        return listMounts(request, (await unlessAborted(activeKeeper(), signal)).held);
      case 'status':
        return { kind: 'state', ask, state: state() };
      case 'upgrade':
        await (await unlessAborted(activeKeeper(), signal)).supervisor.upgrade(request.program, signal);
        return { kind: 'done', ask };
      case 'end':
        await end(signal);
        return { kind: 'done', ask };
      case 'copies':
        await unlessAborted(activeKeeper(), signal);
        share(connection);
        return { kind: 'done', ask };
      case 'restore':
        await restore();
        return { kind: 'done', ask };
      default:
        return request satisfies never;
    }
  }

  async function adopt({ mount, spec }: MessageOf<'adopt'>, fd: number, signal: AbortSignal): Promise<void> {
    try {
      if (Buffer.byteLength(JSON.stringify(spec)) > maxSpecBytes)
        throw new KeeperError('invalid', 'the spec is too long');
      const { supervisor, held } = await unlessAborted(activeKeeper(), signal);
      if (held.mounts.has(mount)) throw new KeeperError('exists', 'a mount with this name already exists');
      if (held.mounts.size >= maxMounts) throw new KeeperError('full', 'too many mounts');
      supervisor.add({ id: mount, spec, fd });
    } catch (cause) {
      closeSync(fd);
      throw cause;
    }
  }

  async function reply(request: AgentRequest, descriptors: number[]): Promise<void> {
    const { ask, kind } = request;
    using limit = clock.deadline(timeoutFor(request), agentGone.signal);
    try {
      connection.send(await handleRequest(request, descriptors, limit.signal));
      if (kind === 'end') ended();
    } catch (cause) {
      const { reason, text } = failureOf(cause);
      log.warn('a request of an agent failed', { asked: kind, reason });
      connection.send({ kind: 'failed', ask, reason, text });
    }
  }

  connection.handle({
    accepts: [...requestKinds, ...transferKinds],
    message: (message, descriptors) =>
      isTransfer(message) ? takeTransfer(message, descriptors) : void reply(message, descriptors),
    closed: () => {
      discardTransfer();
      agentGone.abort(new KeeperError('gone', 'the agent is gone'));
      closed(connection);
    },
  });
  connection.send({ kind: 'state', ask: 0, state: state() });
}

const isTransfer = (message: AgentRequest | Transfer): message is Transfer =>
  transferKinds.some((kind) => kind === message.kind);

function listMounts({ ask, after }: MessageOf<'list'>, { mounts }: HeldDescriptors): Message {
  const names = [...mounts.keys()].filter((name) => name > after).sort();
  return { kind: 'listed', ask, mounts: names.slice(0, maxListedMounts), more: names.length > maxListedMounts };
}

/** Only our own messages are sent: other errors may quote secrets. */
function failureOf(cause: unknown): { readonly reason: string; readonly text: string } {
  if (cause instanceof KeeperError) return { reason: cause.reason, text: cause.message };
  if (cause instanceof DeadlineExceeded) return { reason: 'deadline', text: cause.message };
  return { reason: 'internal', text: 'the keeper failed' };
}
