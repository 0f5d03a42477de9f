import { randomUUID } from 'node:crypto';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import { type AgentMade, type AgentVolume, madeFrom, volumeFrom, volumesFrom } from './agent-answers.ts';
import type { AgentRequest, Agents } from './agents.ts';
import { claimLabels, labelsFor, notYet, retainedLabel, type Wanted } from './provisioner.ts';

/** What agents are asked about the volumes of their nodes. A call that is made again changes nothing more. */
export interface AgentVolumes {
  /** At most one for a claim, whatever the claim says by now. */
  make(node: string, store: string, want: Wanted, scope: Scope): Promise<AgentMade>;
  madeFor(node: string, uid: string, scope: Scope): Promise<AgentVolume | undefined>;
  /** Unknown: no store that the node has open has it. */
  delete(node: string, volume: string, scope: Scope): Promise<'done' | 'unknown'>;
  /** Only what is certainly empty. */
  discard(node: string, volume: string, scope: Scope): Promise<void>;
  /** It outlives its PersistentVolume. */
  retain(node: string, volume: string, scope: Scope): Promise<void>;
  /** Gives the size that it has then, which may be more. */
  expand(node: string, volume: string, bytes: bigint, scope: Scope): Promise<bigint>;
}

/** For one that makes a file system, or deletes a large tree. */
const longMs = 120_000;

const pathOf = (volume: string): string => `/v1/volumes/${encodeURIComponent(volume)}`;

/** `cluster` is the cluster's instance. */
export function createAgentVolumes(agents: Agents, cluster: string): AgentVolumes {
  async function madeFor(node: string, uid: string, scope: Scope): Promise<AgentVolume | undefined> {
    const label = encodeURIComponent(`${claimLabels.uid}=${uid}`);
    const answer = await agents.call(node, { method: 'GET', path: `/v1/volumes?limit=1&label=${label}` }, scope);
    return volumesFrom(answer).volumes[0];
  }

  async function make(node: string, store: string, want: Wanted, scope: Scope): Promise<AgentMade> {
    const { uid } = want.claim;
    const { name, access, labels, enforce } = want;
    const body = {
      ...{ store, name, access, labels, bytes: String(want.bytes), ownLabels: labelsFor(want, cluster) },
      ...(enforce ? { enforce } : {}),
    };
    const request: AgentRequest = { method: 'POST', path: '/v1/volumes', body, deadlineMs: longMs };
    try {
      return madeFrom(await agents.call(node, { ...request, requestId: uid }, scope));
    } catch (thrown) {
      const { reason } = stowageError(thrown);
      if (reason === 'store-unknown') throw notYet(store);
      // Asked before, when the claim said something else; or the agent has forgotten that it was asked.
      if (reason !== 'idempotency-key-reused' && reason !== 'volume-exists' && reason !== 'request-differs')
        throw thrown;
      const known = await madeFor(node, uid, scope);
      if (known !== undefined) return { volume: known, identity: undefined };
      if (reason !== 'idempotency-key-reused') throw thrown;
      return madeFrom(await agents.call(node, { ...request, requestId: `${uid}:${randomUUID()}` }, scope));
    }
  }

  return {
    make,
    madeFor,
    delete: async (node, volume, scope) => {
      const about = { method: 'DELETE', path: pathOf(volume), deadlineMs: longMs } as const;
      try {
        await agents.call(node, { ...about, requestId: `delete:${volume}` }, scope);
        return 'done';
      } catch (thrown) {
        if (stowageError(thrown).reason === 'volume-unknown') return 'unknown';
        throw thrown;
      }
    },
    discard: async (node, volume, scope) => {
      const about = { method: 'DELETE', path: `${pathOf(volume)}/empty` } as const;
      await agents.call(node, { ...about, requestId: `discard:${volume}` }, scope);
    },
    retain: async (node, volume, scope) => {
      const body = { ownLabels: { [retainedLabel]: 'true' } };
      const about = { method: 'PATCH', path: pathOf(volume), body } as const;
      await agents.call(node, { ...about, requestId: `retain:${volume}` }, scope);
    },
    expand: async (node, volume, bytes, scope) => {
      const path = pathOf(volume);
      const before = volumeFrom(await agents.call(node, { method: 'GET', path }, scope));
      if (before.bytes !== undefined && before.bytes >= bytes) return before.bytes;
      const body = { bytes: String(bytes) };
      const about = { method: 'POST', path: `${path}/expand`, body, deadlineMs: longMs } as const;
      const answer = await agents.call(node, { ...about, requestId: `expand:${volume}:${bytes}` }, scope);
      return volumeFrom(answer).bytes ?? bytes;
    },
  };
}
