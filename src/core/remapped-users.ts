import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Clients } from './clients.ts';
import { type ContainerEngine, type EngineKind, engineKindOf } from './containers.ts';
import { StowageError, stowageError } from './errors.ts';
import type { Volume } from './model.ts';
import { type KindsWithOffers, storesOffering } from './store-offers.ts';
import type { Stores } from './stores.ts';

/**
 * Container users of an engine with userns-remap, including root, are unprivileged users that own nothing on any store: their writes fail,
 * or create files of an unknown owner. That is harmless if the store maps all users to one; otherwise the mount is rejected.
 */
export interface RemappedUsers {
  /** Asks the engines whose answer is missing or outdated. */
  refreshAnswers(scope: Scope): Promise<void>;
  refuseIfRemapped(volume: Volume, mountId: string, scope: Scope): Promise<void>;
}

/** How long an answer is valid. The setting changes only when the engine is restarted. */
const answerLifetimeMs = 10_000;
const retryDelayMs = 1_000;
const queryTimeoutMs = 5_000;
/**
 * How long a mount waits for the engine's answer. Docker answers while it waits for a mount, except during its start-up. Podman does not,
 * so its answer is known only after the first mount.
 */
const mountWaitMs = { docker: 1_000, podman: 200 } as const satisfies Record<EngineKind, number>;
const unending = new AbortController().signal;

export function createRemappedUsers(parts: {
  readonly engines: readonly ContainerEngine[];
  readonly clients: Pick<Clients, 'isSingleUser'>;
  readonly stores: () => Pick<Stores, 'use'>;
  readonly kinds: KindsWithOffers;
  readonly clock: Clock;
}): RemappedUsers {
  const { clock, engines } = parts;
  /** `remaps` undefined: the engine has never answered. */
  const answers = new Map<ContainerEngine, { readonly remaps: boolean | undefined; readonly until: number }>();
  const inFlight = new Map<ContainerEngine, { readonly since: number; readonly ended: Promise<void> }>();

  async function queryEngine(engine: ContainerEngine, { log }: Scope): Promise<void> {
    using limit = clock.deadline(queryTimeoutMs, unending);
    try {
      const remaps = await engine.remapsUsers({ log, signal: limit.signal });
      answers.set(engine, { remaps, until: clock.elapsed() + answerLifetimeMs });
    } catch (thrown) {
      log.info('a container engine did not answer whether it remaps users', { why: stowageError(thrown).message });
      // Keep the last answer, and let a later call retry soon.
      answers.set(engine, { remaps: answers.get(engine)?.remaps, until: clock.elapsed() + retryDelayMs });
    }
  }

  function startQuery(engine: ContainerEngine, scope: Scope): Promise<void> {
    const { since, ended } = inFlight.get(engine) ?? {
      since: clock.elapsed(),
      ended: queryEngine(engine, scope).finally(() => inFlight.delete(engine)),
    };
    inFlight.set(engine, { since, ended });
    return ended;
  }

  /** The timeout runs from the question, so concurrent mounts all wait until the same moment. */
  async function waitForAnswer(engine: ContainerEngine): Promise<void> {
    const query = inFlight.get(engine);
    if (query === undefined) return;
    const remainingMs = query.since + mountWaitMs[engine.kind] - clock.elapsed();
    if (remainingMs > 0) await endsWithin(query.ended, remainingMs, clock);
  }

  const isDue = (engine: ContainerEngine): boolean => (answers.get(engine)?.until ?? 0) <= clock.elapsed();

  return {
    refreshAnswers: async (scope) => {
      await Promise.all(engines.filter(isDue).map((engine) => startQuery(engine, scope)));
    },
    refuseIfRemapped: async (volume, mountId, scope) => {
      const kind = engineKindOf({ id: mountId });
      const [engine, ...others] = engines.filter((one) => one.kind === kind);
      // With several engines of one kind it is unknown which one requests the mount.
      if (engine === undefined || others.length > 0) return;
      if (isDue(engine)) void startQuery(engine, scope);
      await waitForAnswer(engine);
      // Allow mounts while the answer is unknown: the engine restarts containers during its start-up, and they were allowed before.
      // That is safe, since the kernel and the server still check permissions.
      if (answers.get(engine)?.remaps !== true) return;
      const source = await parts.stores().use(volume.store, (store) => store.source(volume, scope));
      if (parts.clients.isSingleUser(source)) return;
      throw engineRemapsUsers(volume, engine, parts.kinds);
    },
  };
}

function engineRemapsUsers({ store, name }: Volume, engine: ContainerEngine, kinds: KindsWithOffers): StowageError {
  const instead = storesOffering('singleUser', kinds);
  return new StowageError(`volume '${store}/${name}' cannot be used by ${engine.name}, which remaps users`, {
    code: 'unsupported',
    reason: 'engine-remaps-users',
    action: `Run it on an engine without userns-remap${instead === '' ? '' : `, or use a store whose files all belong to one user: ${instead}`}.`,
  });
}
