import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import type { NodeList, VolumeMounts } from '#front/rest/cluster-nodes.ts';
import type { MountJson } from '#front/rest/schemas.ts';
import { askNodes, type NodeApis, nodesAfter, nodesAtOnce } from './node-apis.ts';

interface ListOf<T> {
  readonly items: readonly T[];
}

/** Merges a list that each node has. Each page covers some nodes. */
export async function listOfNodes<T extends object>(
  apis: NodeApis,
  path: string,
  after: string | undefined,
  scope: Scope,
): Promise<NodeList<T>> {
  const all = nodesAfter(apis, after);
  const some = all.slice(0, nodesAtOnce);
  const { answers, unreached } = await askNodes<ListOf<T>>(apis, some, path, scope);
  return {
    items: answers.flatMap(({ node, answer }) => answer.items.map((item) => ({ ...item, node }))),
    next: all.length > some.length ? some.at(-1) : undefined,
    unreached,
  };
}

/** Where a shared volume is mounted, and by which users. */
export async function mountedOnNodes(apis: NodeApis, volume: VolumeId, scope: Scope): Promise<VolumeMounts> {
  const path = `/v1/mounts?volume=${encodeURIComponent(volume)}`;
  const asked = await askNodes<ListOf<MountJson>>(apis, nodesAfter(apis, undefined), path, scope);
  const mounts = asked.answers.flatMap(({ node, answer }) => answer.items.map((mount) => ({ ...mount, node })));
  const users = mounts.filter(({ mounted }) => mounted).map(({ user }) => user);
  return { mounts, users, unreached: asked.unreached };
}
