import { eachBounded } from '#base/each-bounded.ts';
import { StowageError } from '#core/errors.ts';
import type { AdoptionJson, StoreJson, VolumeJson } from '#front/rest/schemas.ts';
import { pathSegment } from './arguments.ts';
import type { ClusterOptions } from './cluster-connection.ts';
import { collect, type StowageCommand } from './command.ts';
import { runLongOperation } from './long-operation.ts';
import { invalid, problemOf } from './problem.ts';
import type { MakeAction, Session } from './session.ts';
import type { TakeOverAction, TakeOverCandidate, TakeOverService, TakeOverState } from './take-over-service.ts';
import { escapeControls, plural } from './text.ts';

interface TakeOverFlags {
  readonly all?: boolean;
  readonly dryRun?: boolean;
  readonly undo?: boolean;
  readonly finish?: boolean;
  readonly server?: readonly string[];
}

/** Only for `kubectl stowage`: only a cluster has volumes of other provisioners. */
export function addTakeOverCommand(program: StowageCommand, act: MakeAction): void {
  program
    .command('take-over')
    .description(
      'Migrate PersistentVolumeClaims of csi-driver-nfs and nfs-subdir-external-provisioner to Stowage. Names and data stay the same. ' +
        'Without claims and --all, it only lists the candidates. Exits with 1 if a requested claim could not be migrated.',
    )
    .argument('<store>', 'store whose NFS export contains the directories of the claims')
    .argument('[claims...]', 'NAMESPACE/CLAIM, or NAMESPACE for all claims in it')
    .option('--all', 'migrate all claims that no pod uses')
    .option('--dry-run', 'only print what would be done')
    .option('--undo', 'bind the claims to their original PersistentVolumes again')
    .option('--finish', 'finish the take-over; it cannot be undone afterwards')
    .option('--server <name>', "another name or address of the store's server (repeatable)", collect)
    .example('stowage take-over silver', 'list the claims with directories on the export of silver')
    .example('stowage take-over silver shop/data-db-0', 'migrate one claim that no pod uses')
    .example('stowage take-over silver --all', 'migrate all claims that no pod uses')
    .example('stowage take-over silver shop/data-db-0 --undo', 'undo the migration of the claim')
    .example(
      'stowage take-over silver --all --finish',
      'after a check of the workloads: delete the original PersistentVolumes',
    )
    .action(act(takeOver));
}

const resultWords: Readonly<Record<TakeOverAction, { readonly done: string; readonly would: string }>> = {
  take: { done: 'took over', would: 'would take over' },
  undo: { done: 'gave back', would: 'would give back' },
  finish: { done: 'finished', would: 'would finish' },
};
/** The states in which an action has something to do. */
const pendingStates: Readonly<Record<TakeOverAction, readonly TakeOverState[]>> = {
  take: ['ready', 'begun'],
  undo: ['begun', 'taken-over'],
  finish: ['taken-over'],
};
/** The states that need the user's attention before the action is possible. */
const blockedStates: Readonly<Record<TakeOverAction, readonly TakeOverState[]>> = {
  take: ['used', 'impossible'],
  undo: [],
  finish: ['begun'],
};
const maxConcurrent = 8;
const namesPerRequest = 500;

async function takeOver(
  session: Session,
  store: string,
  names: readonly string[],
  options: TakeOverFlags,
  command: StowageCommand,
): Promise<number> {
  const { services, out } = session;
  if (options.undo === true && options.finish === true)
    throw invalid('--undo and --finish are mutually exclusive', 'usage', 'Specify only one of them.');
  const action: TakeOverAction = options.undo === true ? 'undo' : options.finish === true ? 'finish' : 'take';
  const { kubeconfig, context }: ClusterOptions = command.optsWithGlobals();
  const request = { kubeconfig, context, store, servers: options.server ?? [] };
  using service = await services.takeOver?.(request);
  if (service === undefined) throw invalid('take-over works only in a cluster', 'usage', 'Use: kubectl stowage');
  const { candidates, otherServers } = await service.findCandidates(action);
  const chosen = candidates.filter((one) => isSelected(one, names));
  requireKnownClaims(names, candidates);
  const volumes = await volumeIdsByName(session, store);
  const known = action === 'take' ? await withAdoptionProblems(session, store, chosen, volumes) : chosen;
  if (names.length === 0 && options.all !== true) return overview(session, known, otherServers, store);
  const pending = known.filter(({ state }) => pendingStates[action].includes(state));
  const isNamed = names.length > 0;
  const blocked = known.filter(
    ({ state }) => blockedStates[action].includes(state) || (isNamed && state === 'unclaimed'),
  );
  const results: { readonly claim: string; readonly done: boolean; readonly detail: string }[] = [];
  const addResult = (one: TakeOverCandidate, done: boolean, detail: string): void => {
    const claim = one.claim ?? one.from;
    results.push({ claim, done, detail });
    if (out.json || (out.quiet && done)) return;
    const verb = options.dryRun === true ? resultWords[action].would : resultWords[action].done;
    out.line(
      done
        ? `${verb} ${escapeControls(claim)}: ${escapeControls(detail)}`
        : `skipped ${escapeControls(claim)}: ${escapeControls(detail)}`,
    );
  };
  if (options.dryRun !== true && action === 'take') await adoptDirectories(session, store, pending, volumes);
  const isAsked = options.dryRun !== true && action !== 'undo' && pending.length > 0;
  const identity = isAsked ? await identityOf(session, store) : undefined;
  await eachBounded(pending, maxConcurrent, async (one) => {
    const detail =
      action === 'undo' ? `PersistentVolume ${one.from}` : `PersistentVolume ${one.to}, directory ${one.directory}`;
    try {
      const more = options.dryRun === true ? one.detail : await runAction(service, action, one, { volumes, identity });
      addResult(one, true, more === '' ? detail : `${detail}; ${more}`);
    } catch (thrown) {
      const { reason, detail: why, action: advice } = problemOf(thrown);
      if (reason === 'interrupted') throw thrown;
      addResult(one, false, advice === '' ? why : `${why}. ${advice}`);
    }
  });
  for (const one of blocked) addResult(one, false, one.detail);
  if (out.json) out.value(results);
  else if (results.length === 0) out.note('nothing to do');
  const missing = results.filter(({ done }) => !done).length;
  if (missing > 0) out.note(`${plural(missing, 'claim')} skipped; fix the causes and repeat the command`);
  return missing > 0 ? 1 : 0;
}

/** Returns what the user should know about the claim, or an empty string. */
async function runAction(
  service: TakeOverService,
  action: TakeOverAction,
  candidate: TakeOverCandidate,
  { volumes, identity }: { readonly volumes: ReadonlyMap<string, string>; readonly identity: string | undefined },
): Promise<string> {
  if (action === 'finish') return await service.finish(candidate, identity);
  if (action === 'undo') await service.undo(candidate);
  else await service.take(candidate, volumes.get(candidate.directory) ?? '', identity);
  return '';
}

const isSelected = ({ claim }: TakeOverCandidate, names: readonly string[]): boolean =>
  names.length === 0 || names.some((name) => claim === name || claim?.startsWith(`${name}/`) === true);

function requireKnownClaims(names: readonly string[], candidates: readonly TakeOverCandidate[]): void {
  const absent = names.filter((name) => !candidates.some((one) => isSelected(one, [name])));
  if (absent.length === 0) return;
  throw invalid(
    `no claim ${absent.map((name) => `'${escapeControls(name)}'`).join(', ')} has a directory on the export of the store`,
    'take-over-not-possible',
    'List the candidates: stowage take-over STORE. Write a claim as NAMESPACE/CLAIM.',
  );
}

/** The volumes of the store: name to id. */
async function volumeIdsByName({ client }: Session, store: string): Promise<Map<string, string>> {
  const { items } = await client.listOverStores<VolumeJson>('/v1/volumes', { store });
  return new Map(items.filter((one) => one.store === store).map(({ name, id }) => [name, id]));
}

/** The store's identity, which is recorded with the volume: a later deletion checks that the store is still the same. */
async function identityOf({ client }: Session, store: string): Promise<string | undefined> {
  const { identity, state } = await client.get<StoreJson>(`/v1/stores/${encodeURIComponent(store)}`);
  if (identity === null && state !== 'open')
    throw new StowageError(`store '${store}' is not open`, {
      code: 'unavailable',
      reason: 'take-over-not-possible',
      action: 'Find the cause: kubectl get stores. Repeat the command when the store is open; this is safe.',
    });
  return identity ?? undefined;
}

const canTakeOver = ({ state }: TakeOverCandidate): boolean => pendingStates.take.includes(state);

/** Marks the candidates whose directories Stowage can't adopt (by a dry run). */
async function withAdoptionProblems(
  session: Session,
  store: string,
  candidates: readonly TakeOverCandidate[],
  volumes: ReadonlyMap<string, string>,
): Promise<readonly TakeOverCandidate[]> {
  const fresh = candidates.filter((one) => canTakeOver(one) && !volumes.has(one.directory));
  const reasons = new Map<string, string>();
  for (const { skipped } of await requestAdoption(session, store, fresh, true))
    for (const { name, reason } of skipped) reasons.set(name, reason);
  return candidates.map((one) => {
    const reason = fresh.includes(one) ? reasons.get(one.directory) : undefined;
    return reason === undefined ? one : { ...one, state: 'impossible', detail: `its directory: ${reason}` };
  });
}

async function adoptDirectories(
  session: Session,
  store: string,
  candidates: readonly TakeOverCandidate[],
  volumes: Map<string, string>,
): Promise<void> {
  const fresh = candidates.filter(({ directory }) => !volumes.has(directory));
  for (const { adopted } of await requestAdoption(session, store, fresh, false))
    for (const { name, id } of adopted) if (id !== null) volumes.set(name, id);
}

async function requestAdoption(
  session: Session,
  store: string,
  candidates: readonly TakeOverCandidate[],
  dryRun: boolean,
): Promise<readonly AdoptionJson[]> {
  const names = candidates.map(({ directory }) => directory);
  const answers: AdoptionJson[] = [];
  for (let at = 0; at < names.length; at += namesPerRequest) {
    const body = { dryRun, directories: true, names: names.slice(at, at + namesPerRequest) };
    const path = `/v1/stores/${pathSegment('store', store, 'store-reference')}/adopt`;
    const answer = await runLongOperation<AdoptionJson>(session, { method: 'POST', path, body });
    if (answer !== undefined) answers.push(answer);
  }
  return answers;
}

function overview(
  { out }: Session,
  candidates: readonly TakeOverCandidate[],
  otherServers: readonly string[],
  store: string,
): number {
  if (out.json) out.value(candidates);
  else if (out.quiet) candidates.filter(canTakeOver).forEach(({ claim }) => void out.line(escapeControls(claim ?? '')));
  else if (candidates.length > 0)
    out.table(
      ['CLAIM', 'STATE', 'FROM', 'DIRECTORY', 'DETAIL'],
      candidates.map(({ claim, state, from, directory, detail }) => [
        claim ?? '',
        state.replace('-', ' '),
        from,
        directory,
        detail,
      ]),
    );
  if (candidates.length === 0)
    out.note(`no PersistentVolume of another provisioner has a directory on the export of ${store}`);
  if (otherServers.length > 0)
    out.note(
      `other PersistentVolumes are on ${otherServers.join(', ')}; if this is another name of the server of ${store}, add: --server NAME`,
    );
  const ready = candidates.filter(canTakeOver).length;
  if (ready > 0) out.note(`${plural(ready, 'claim')} can be taken over: specify them, or use --all`);
  return 0;
}
