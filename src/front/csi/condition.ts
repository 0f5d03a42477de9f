import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { toldToUser } from '#core/telling.ts';
import { VolumeHealthErrorType as Health } from '#wire/csi/generated/csi.ts';
import type { About } from './driver.ts';

/** How a volume is, as far as it can be told without anybody waiting long. */
export interface Condition {
  readonly health: 'ok' | 'inaccessible' | 'lost';
  readonly reason: string;
  readonly message: string;
}

const fine: Condition = { health: 'ok', reason: '', message: 'the volume is as it should be' };

export async function conditionOf(about: About, volume: Volume, scope: Scope): Promise<Condition> {
  const known = await storeConditionOf(about, volume, scope);
  if (known.health !== 'ok') return known;
  try {
    const { condition, detail } = await about.engine.volumes.inspect(volume.id, scope);
    if (condition === 'ok') return fine;
    return { health: 'lost', reason: 'DataMissing', message: detail ?? 'the data of the volume are gone' };
  } catch (thrown) {
    const { message } = toldToUser(stowageError(thrown), '');
    return { health: 'inaccessible', reason: 'NotInspected', message };
  }
}

/** What is known of its store alone: for lists. */
export async function storeConditionOf(
  about: About,
  { store }: Pick<Volume, 'store'>,
  scope: Scope,
): Promise<Condition> {
  const { stores, answers } = about.engine;
  const { problem } = stores.view(store);
  if (problem !== undefined)
    return {
      ...{ health: 'inaccessible', reason: 'StoreNotOpen' },
      message: `store '${store}' is not open: ${toldToUser(problem, '').message}`,
    };
  if ((await answers.silent([store], scope)).has(store))
    return { health: 'inaccessible', reason: 'StoreSilent', message: `the server of store '${store}' does not answer` };
  return fine;
}

/** As CSI said it until 1.12. */
export const conditionMessage = ({ health, message }: Condition) => ({ abnormal: health !== 'ok', message });

/** As CSI says it from 1.13 on: nothing is what there is to say of a volume that is well. */
export const healthMessage = (volumeId: string, { health, reason, message }: Condition) => ({
  volumeId,
  healthStatuses:
    health === 'ok' ? [] : [{ status: health === 'lost' ? Health.DATA_LOSS : Health.INACCESSIBLE, reason, message }],
});
