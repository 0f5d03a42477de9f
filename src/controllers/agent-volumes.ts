import { randomUUID } from 'node:crypto';
import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import { stowageError } from '#core/errors.ts';
import { isVolumeId } from '#core/names.ts';
import {
  type AgentVolume,
  type CreatedAgentVolume,
  createdVolumeFrom,
  volumeFrom,
  volumesFrom,
} from './agent-answers.ts';
import type { AgentRequest, Agents } from './agents.ts';
import { claimLabelsFor, retainedLabel, storeNotOpen, type VolumeRequest } from './provisioner.ts';

/**
 * Requests to agents about the volumes of their nodes. Every call can be repeated when its answer was lost.
 *
 * An agent remembers the answer to a request id for a day, and returns it again without repeating the work. So a request id must name one
 * logical request, never just the verb and the volume: a volume that was deleted can be restored and deleted again, and another volume can
 * get its name. `discard`, `retain` and `expand` are idempotent, so they need no request id; neither does deleting by id. Deleting by name
 * needs one: a retry must not delete a volume that has got the name since.
 */
export interface AgentVolumes {
  /** Creates at most one volume for a claim, even if the claim has changed since. */
  create(node: string, store: string, request: VolumeRequest, scope: Scope): Promise<CreatedAgentVolume>;
  findFor(node: string, uid: string, scope: Scope): Promise<AgentVolume | undefined>;
  /** 'unknown': no open store of the node has the volume; it may have been deleted. `uid` is that of the PersistentVolume. */
  delete(node: string, volume: string, uid: string | undefined, scope: Scope): Promise<'done' | 'unknown'>;
  /** Deletes the volume only if it is certainly empty. */
  discard(node: string, volume: string, scope: Scope): Promise<void>;
  /** Labels a volume that outlives its PersistentVolume. */
  retain(node: string, volume: string, scope: Scope): Promise<void>;
  /** Returns the new size, which may be larger than requested. */
  expand(node: string, volume: string, bytes: bigint, scope: Scope): Promise<bigint>;
}

/** Long enough to create a file system, or to delete a large tree. */
const longTimeoutMs = 120_000;

const pathOf = (volume: string): string => `/v1/volumes/${encodeURIComponent(volume)}`;

/** `cluster` is the cluster's instance. */
export function createAgentVolumes(agents: Agents, cluster: string): AgentVolumes {
  async function findFor(node: string, uid: string, scope: Scope): Promise<AgentVolume | undefined> {
    const label = encodeURIComponent(`${claimLabels.uid}=${uid}`);
    const answer = await agents.call(node, { method: 'GET', path: `/v1/volumes?limit=1&label=${label}` }, scope);
    return volumesFrom(answer).volumes[0];
  }

  async function create(
    node: string,
    store: string,
    volumeRequest: VolumeRequest,
    scope: Scope,
  ): Promise<CreatedAgentVolume> {
    const { uid } = volumeRequest.claim;
    const { name, access, labels, enforce } = volumeRequest;
    const body = {
      store,
      name,
      access,
      labels,
      bytes: String(volumeRequest.bytes),
      ownLabels: claimLabelsFor(volumeRequest, cluster),
      ...(enforce ? { enforce } : {}),
    };
    const request: AgentRequest = { method: 'POST', path: '/v1/volumes', body, deadlineMs: longTimeoutMs };
    try {
      return createdVolumeFrom(await agents.call(node, { ...request, requestId: uid }, scope));
    } catch (thrown) {
      const { reason } = stowageError(thrown);
      if (reason === 'store-unknown') throw storeNotOpen(store);
      // The claim had other parameters at the first request; or the agent has forgotten the request.
      if (reason !== 'idempotency-key-reused' && reason !== 'volume-exists' && reason !== 'request-differs')
        throw thrown;
      const existing = await findFor(node, uid, scope);
      if (existing !== undefined) return { volume: existing, identity: undefined };
      if (reason !== 'idempotency-key-reused') throw thrown;
      return createdVolumeFrom(await agents.call(node, { ...request, requestId: `${uid}:${randomUUID()}` }, scope));
    }
  }

  return {
    create,
    findFor,
    delete: async (node, volume, uid, scope) => {
      const deletion = { method: 'DELETE', path: pathOf(volume), deadlineMs: longTimeoutMs } as const;
      const idempotency = isVolumeId(volume) || uid === undefined ? {} : { requestId: `delete:${uid}:${volume}` };
      try {
        await agents.call(node, { ...deletion, ...idempotency }, scope);
        return 'done';
      } catch (thrown) {
        if (stowageError(thrown).reason === 'volume-unknown') return 'unknown';
        throw thrown;
      }
    },
    discard: async (node, volume, scope) => {
      await agents.call(node, { method: 'DELETE', path: `${pathOf(volume)}/empty` }, scope);
    },
    retain: async (node, volume, scope) => {
      const body = { ownLabels: { [retainedLabel]: 'true' } };
      await agents.call(node, { method: 'PATCH', path: pathOf(volume), body }, scope);
    },
    expand: async (node, volume, bytes, scope) => {
      const path = pathOf(volume);
      const current = volumeFrom(await agents.call(node, { method: 'GET', path }, scope));
      if (current.bytes !== undefined && current.bytes >= bytes) return current.bytes;
      const body = { bytes: String(bytes) };
      const request: AgentRequest = { method: 'POST', path: `${path}/expand`, body, deadlineMs: longTimeoutMs };
      return volumeFrom(await agents.call(node, request, scope)).bytes ?? bytes;
    },
  };
}
