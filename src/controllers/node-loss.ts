import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { Engine } from '#core/engine.ts';
import { stowageError } from '#core/errors.ts';
import type { SeenUse } from '#core/model.ts';
import { nodes } from '#wire/kube/resources.ts';
import type { Node } from '#wire/kube/types.ts';
import { type Controller, createController } from './engine/controller.ts';
import { type Again, type Done, done } from './engine/outcome.ts';
import { drivers } from './names.ts';
import { type ControllerParts, found } from './parts.ts';

export interface NodeLossOptions extends Omit<ControllerParts, 'provisioners'> {
  readonly engine: Engine;
}

/** Put on a node by whoever knows that it is off, and that nothing of it still writes. */
const outOfService = 'node.kubernetes.io/out-of-service';
const atOnce = 8;

const isLost = (node: Node | undefined): boolean =>
  node === undefined || (node.spec?.taints ?? []).some(({ key }) => key === outOfService);

/**
 * A node that Kubernetes declares gone, by deleting it or by the taint, no longer uses volumes: what it said on their stores
 * is taken back, so that others may have them. Nobody else does that. A node that is only silent still counts.
 */
export function createNodeLoss({ client, clock, caches, events, engine }: NodeLossOptions): Controller {
  async function reconcile(name: string, scope: Scope): Promise<Done | Again> {
    // Keys are of nodes that were there: one that is not is one that was deleted.
    if (!isLost(caches.nodes.get(name))) return done;
    if (!isLost(await found(client.get(nodes, { name }, scope.signal)))) return done;
    const handles = [...caches.volumes.all()].flatMap(({ spec: { csi } }) =>
      csi?.driver === drivers.anywhere ? csi.volumeHandle : [],
    );
    let released = 0;
    await eachBounded(handles, atOnce, async (handle) => {
      released += await release(handle, name, scope);
    });
    if (released === 0) return done;
    scope.log.warn('a node is gone: its volumes are free for others', { node: name, volumes: released });
    const note = `The node is gone: ${released} volumes that it used are free for other nodes.`;
    const about = { type: 'Normal', reason: 'VolumesReleased', action: 'Release', note } as const;
    events.report({ ...about, regarding: { apiVersion: 'v1', kind: 'Node', name } });
    return done;
  }

  /** How many records of that node there were. */
  async function release(handle: string, node: string, scope: Scope): Promise<number> {
    try {
      const volume = await engine.catalogue.resolve(handle, scope);
      const uses = (await engine.uses.of(volume, scope)) ?? [];
      const gone = uses.filter((use) => isOf(use, node));
      for (const { host } of gone) {
        scope.log.info('breaking a record of use', { volume: volume.id, host, node });
        await engine.uses.release(volume.id, host, { ...scope, requestId: `node-loss:${volume.id}:${host}` });
      }
      return gone.length;
    } catch (thrown) {
      if (stowageError(thrown).code === 'not-found') return 0;
      throw thrown;
    }
  }

  const controller = createController({ name: 'node-loss', clock, reconcile, workers: 2 });
  controller.follow(caches.nodes);
  controller.follow(caches.volumes, () => []);
  return controller;
}

/** Machines that are no nodes may have the same name: theirs are not used by pods. */
const isOf = ({ node, users }: SeenUse, name: string): boolean =>
  node === name && users.every(({ kind }) => kind === 'pod' || kind === 'kubelet');
