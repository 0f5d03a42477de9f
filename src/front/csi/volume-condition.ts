import type { Scope } from '#base/log.ts';
import { redactForUser } from '#core/error-disclosure.ts';
import { stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import type { MountState } from '#core/mount-health.ts';
import { notAnswering } from '#core/store-errors.ts';
import { VolumeHealthErrorType as Health } from '#wire/csi/generated/csi.ts';
import type { DriverContext } from './driver-context.ts';

/** The condition of a volume, as far as it is known without a long wait. */
export interface VolumeCondition {
  readonly health: 'ok' | 'inaccessible' | 'lost';
  readonly reason: string;
  readonly message: string;
}

const healthy: VolumeCondition = { health: 'ok', reason: '', message: 'the volume is healthy' };

export async function conditionOf(ctx: DriverContext, volume: Volume, scope: Scope): Promise<VolumeCondition> {
  const known = await storeConditionOf(ctx, volume, scope);
  if (known.health !== 'ok') return known;
  try {
    const { condition, detail } = await ctx.core.volumes.inspect(volume.id, scope);
    if (condition === 'ok') return healthy;
    return { health: 'lost', reason: 'DataMissing', message: detail ?? 'the data of the volume are missing' };
  } catch (thrown) {
    const { message } = redactForUser(stowageError(thrown), '');
    return { health: 'inaccessible', reason: 'NotInspected', message };
  }
}

/** The mount states that make a volume inaccessible. A silent store is not among them: the store's own condition says more. */
const mountReasons: { readonly [S in MountState]?: string } = {
  unmounted: 'Unmounted',
  dead: 'MountDead',
  'client-failing': 'ClientFailing',
};

/**
 * Also checks the volume's mounts on this node: the one at `target`, or all if undefined. The process that serves a mount can die while the
 * store is healthy.
 */
export async function conditionOnNode(
  ctx: DriverContext,
  volume: Volume,
  target: string | undefined,
  scope: Scope,
): Promise<VolumeCondition> {
  const [mounts, condition] = await Promise.all([
    ctx.core.mountHealth(scope, volume.id),
    conditionOf(ctx, volume, scope),
  ]);
  for (const { target: at, health } of mounts) {
    const reason = target === undefined || target === at ? mountReasons[health.state] : undefined;
    if (reason !== undefined) return { health: 'inaccessible', reason, message: health.detail ?? reason };
  }
  return condition;
}

/** The condition of the store only, for lists. */
export async function storeConditionOf(
  ctx: DriverContext,
  { store }: Pick<Volume, 'store'>,
  scope: Scope,
): Promise<VolumeCondition> {
  const { stores, liveness } = ctx.core;
  const { problem } = stores.view(store);
  if (problem !== undefined)
    return {
      health: 'inaccessible',
      reason: 'StoreNotOpen',
      message: `store '${store}' is not open: ${redactForUser(problem, '').message}`,
    };
  if ((await liveness.findSilent([store], scope)).has(store))
    return {
      health: 'inaccessible',
      reason: 'StoreSilent',
      message: notAnswering(store, liveness.denialOf(store)).message,
    };
  return healthy;
}

/** The VolumeCondition message of CSI before 1.13. */
export const conditionMessage = ({ health, message }: VolumeCondition) => ({ abnormal: health !== 'ok', message });

/** The VolumeHealth message of CSI 1.13: a healthy volume has no statuses. */
export const healthMessage = (volumeId: string, { health, reason, message }: VolumeCondition) => ({
  volumeId,
  healthStatuses:
    health === 'ok' ? [] : [{ status: health === 'lost' ? Health.DATA_LOSS : Health.INACCESSIBLE, reason, message }],
});
