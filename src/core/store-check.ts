import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { StowageError } from './errors.ts';
import type { StoreCheck, StoreConfig } from './model.ts';
import type { StoreKind } from './ports.ts';
import { noAnswerStep, slowCheckStep, storeNotOnNetwork, storeUnavailable } from './store-errors.ts';
import { schemeOf } from './store-scheme.ts';
import type { Stores } from './stores.ts';

/** A healthy disk or server answers a check within this time. */
export const checkDeadlineMs = 15_000;

const failed = (...steps: StoreCheck['steps']): StoreCheck => ({
  ok: false,
  steps,
  totalBytes: undefined,
  freeBytes: undefined,
});

/** People check stores whose disk hangs, so the check itself must not hang. */
async function inTime(check: Promise<StoreCheck>, clock: Clock, from?: string): Promise<StoreCheck> {
  if (await endsWithin(check, checkDeadlineMs, clock)) return await check;
  const seconds = Math.round(checkDeadlineMs / 1000);
  return failed(from === undefined ? noAnswerStep(seconds) : slowCheckStep(from, seconds));
}

export const checkOpen = (stores: Pick<Stores, 'use'>, name: string, scope: Scope, clock: Clock): Promise<StoreCheck> =>
  inTime(
    stores.use(name, (store) => store.check(scope)),
    clock,
  );

/** Probes a store that is not open. Undefined: its kind has no probe, or the probe failed. */
export async function probeClosed(
  kinds: ReadonlyMap<string, StoreKind>,
  config: StoreConfig,
  scope: Scope,
  clock: Clock,
): Promise<StoreCheck | undefined> {
  const kind = kinds.get(schemeOf(config.uri));
  const work = kind?.probe?.(config, config.policy, scope);
  return work === undefined ? undefined : await inTime(work, clock).catch(() => undefined);
}

/** Probes the store from another place, such as the network of a container. */
export async function probeFrom(
  kinds: ReadonlyMap<string, StoreKind>,
  config: StoreConfig,
  from: string,
  scope: Scope,
  clock: Clock,
): Promise<StoreCheck> {
  const kind = kinds.get(schemeOf(config.uri));
  if (kind?.probe === undefined) throw storeNotOnNetwork(config);
  return await inTime(kind.probe(config, config.policy, scope, from), clock, from);
}

/** The steps of the probe, followed by the reason why the store is not open. */
export function notOpened(
  probed: StoreCheck | undefined,
  config: StoreConfig,
  problem: StowageError | undefined,
): StoreCheck {
  const { message, action, reason } = storeUnavailable(config, problem);
  return failed(...(probed?.steps ?? []), { step: 'open', ok: false, detail: message, action, reason });
}
