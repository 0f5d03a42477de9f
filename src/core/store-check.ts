import type { Clock } from '#base/clock.ts';
import { createLimiter } from '#base/limiter.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { StowageError } from './errors.ts';
import type { StoreCheck, StoreConfig } from './model.ts';
import type { StoreKind } from './ports.ts';
import type { StoreEntries } from './store-entries.ts';
import { noAnswerStep, slowCheckStep, storeNotOnNetwork, storeUnavailable } from './store-errors.ts';
import type { StoreLookup } from './store-lookup.ts';
import { schemeOf } from './store-scheme.ts';

export interface StoreChecks {
  /** `from`: check from the network of a container, from a network of an engine, or from a network namespace. */
  check(name: string, scope: Scope, from?: string): Promise<StoreCheck>;
}

export interface StoreCheckParts {
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly clock: Clock;
}

/** A healthy disk or server answers a check within this time. */
export const checkDeadlineMs = 15_000;
/** The maximum number of concurrent checks from other networks. Each starts a process of about 40 MB. */
const maxRemoteChecks = 3;

export function createStoreChecks(
  { kinds, clock }: StoreCheckParts,
  entries: Pick<StoreEntries, 'open'>,
  lookup: Pick<StoreLookup, 'entryOf' | 'use'>,
): StoreChecks {
  const remoteChecks = createLimiter(maxRemoteChecks);
  return {
    check: async (name, scope, from) => {
      const entry = lookup.entryOf(name);
      if (from !== undefined)
        return await remoteChecks.run(() => probeFrom(kinds, entry.config, from, scope, clock), scope.signal);
      if (entry.store !== undefined) return await checkOpen(lookup, name, scope, clock);
      const probed = await probeClosed(kinds, entry.config, scope, clock);
      // If the probe failed, opening would fail too and reveal nothing more.
      if (probed?.ok === false) return probed;
      // Look it up again, since it may have been removed while this waited.
      const current = lookup.entryOf(name);
      await entries.open(current, scope, checkDeadlineMs);
      const { store, config, problem } = current;
      if (store === undefined) return openFailedCheck(probed, config, problem);
      return probed ?? (await checkOpen(lookup, name, scope, clock));
    },
  };
}

const failedCheck = (...steps: StoreCheck['steps']): StoreCheck => ({
  ok: false,
  steps,
  totalBytes: undefined,
  freeBytes: undefined,
});

/** People check stores whose disk hangs, so the check itself must not hang. */
async function withDeadline(check: Promise<StoreCheck>, clock: Clock, from?: string): Promise<StoreCheck> {
  if (await endsWithin(check, checkDeadlineMs, clock)) return await check;
  const seconds = Math.round(checkDeadlineMs / 1000);
  return failedCheck(from === undefined ? noAnswerStep(seconds) : slowCheckStep(from, seconds));
}

const checkOpen = (stores: Pick<StoreLookup, 'use'>, name: string, scope: Scope, clock: Clock): Promise<StoreCheck> =>
  withDeadline(
    stores.use(name, (store) => store.check(scope)),
    clock,
  );

/** Probes a store that is not open. Undefined: its kind has no probe, or the probe failed. */
async function probeClosed(
  kinds: ReadonlyMap<string, StoreKind>,
  config: StoreConfig,
  scope: Scope,
  clock: Clock,
): Promise<StoreCheck | undefined> {
  const kind = kinds.get(schemeOf(config.uri));
  const work = kind?.probe?.(config, config.policy, scope);
  return work === undefined ? undefined : await withDeadline(work, clock).catch(() => undefined);
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
  return await withDeadline(kind.probe(config, config.policy, scope, from), clock, from);
}

/** The steps of the probe, followed by the reason why the store is not open. */
function openFailedCheck(
  probed: StoreCheck | undefined,
  config: StoreConfig,
  problem: StowageError | undefined,
): StoreCheck {
  const { message, action, reason } = storeUnavailable(config, problem);
  return failedCheck(...(probed?.steps ?? []), { step: 'open', ok: false, detail: message, action, reason });
}
