import { canceled, StowageError } from '#core/errors.ts';
import type { DeletionJson, StoreJson, TrashEntryJson, VolumeJson } from '#front/rest/schemas.ts';
import { isVolumeId, parseRevision, qualifiedName, type RevisionFlag, refPath, splitRef } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { runLongOperation } from './long-operation.ts';
import { exitOf, invalid, ServerProblem } from './problem.ts';
import type { MakeAction, Session } from './session.ts';
import { age, date, escapeControls, size } from './text.ts';

export function addDeletionCommands(volume: StowageCommand, act: MakeAction): void {
  volume
    .command('delete')
    .alias('rm')
    .description(
      'Delete volumes, and print the outcome of each: deleted, in the trash until a date, or retained.\nDoes not ask for confirmation.',
    )
    .argument('<volumes...>', 'store/name, name or id')
    .option('--if-revision <n>', 'only if the volume is still at this revision (one volume only)')
    .example('stowage volume delete demo', 'the store’s onDelete policy decides what happens to the data')
    .example('stowage volume delete local/a local/b', 'delete several volumes; if one fails, delete the others anyway')
    .action(act(remove));
  volume
    .command('restore')
    .description('Restore a deleted volume from the trash.')
    .argument('<trashed>', 'its former store/name, name or id')
    .option('--name <new-name>', 'restore it under this name')
    .example('stowage volume restore demo', 'restore it with the same id')
    .example('stowage volume restore local/demo --name demo-old', 'restore it under another name')
    .action(act(restore));
  const trash = volume
    .command('trash')
    .description('List or purge deleted volumes that can still be restored.')
    .example('stowage volume trash list', 'list the trash');
  trash
    .command('list')
    .alias('ls')
    .description('List deleted volumes that can still be restored.')
    .option('--store <store>', 'only volumes of this store')
    .example('stowage volume trash list', 'deleted volumes, and when they expire')
    .action(act(listTrash));
  trash
    .command('purge')
    .description('Delete volumes in the trash permanently. Does not ask for confirmation.')
    .argument('<trashed...>', 'store/name, name or id')
    .example('stowage volume trash purge local/demo', 'free the space of the volume now')
    .action(act(purge));
}

/** Errors of this program about one volume; like a server's error, they do not affect the others. */
const perVolumeReasons = ['trash-not-found', 'trash-ambiguous', 'trash-lookup-incomplete'];

/** Whether the error would repeat for the other volumes: the connection failed, not one request. */
const stopsTheRest = (thrown: unknown): boolean =>
  !(thrown instanceof StowageError) ? !(thrown instanceof ServerProblem) : !perVolumeReasons.includes(thrown.reason);

/** Runs the work for each volume in turn. Continues after the server rejected one; stops if the connection fails. */
async function forEachVolume<T>(
  session: Session,
  refs: readonly string[],
  work: (ref: string) => Promise<T>,
): Promise<number> {
  const { out, io } = session;
  const results: T[] = [];
  let status = 0;
  for (const ref of refs) {
    try {
      if (io.signal.aborted) throw canceled(io.signal.reason);
      results.push(await work(ref));
    } catch (thrown) {
      out.error(thrown);
      status ||= exitOf(thrown);
      if (io.signal.aborted || stopsTheRest(thrown)) break;
    }
  }
  if (out.json) out.value(results);
  return status;
}

async function remove(session: Session, refs: readonly string[], options: RevisionFlag): Promise<number> {
  const { client, out } = session;
  const ifRevision = parseRevision(options);
  if (ifRevision !== undefined && refs.length > 1) {
    throw invalid('--if-revision applies to a single volume', 'revision-ambiguous', 'Delete the volumes one by one.');
  }
  const paths = new Map(refs.map((ref) => [ref, `/v1/volumes/${refPath(ref)}`]));
  return await forEachVolume(session, refs, async (ref) => {
    const volume = await client.get<VolumeJson>(paths.get(ref) ?? '');
    // Use the id: the name may belong to another volume by now.
    const path = `/v1/volumes/${encodeURIComponent(volume.id)}`;
    const result = await runLongOperation<DeletionJson>(session, { method: 'DELETE', path, ifRevision });
    out.reportDone(deletionText(volume, result));
    return { id: volume.id, store: volume.store, name: volume.name, ...result };
  });
}

function deletionText(volume: VolumeJson, deletion: DeletionJson | undefined): string {
  // Undefined: the server no longer knows the result, but the volume is gone.
  const { outcome, expiresAt } = deletion ?? { outcome: 'deleted', expiresAt: null };
  switch (outcome) {
    case 'retained':
      return `removed ${qualifiedName(volume)}; its data is retained on the store`;
    case 'archived':
      return `moved ${qualifiedName(volume)} to the trash${expiresAt === null ? '' : ` until ${date(expiresAt)}`}`;
    case 'deleted':
      return `deleted ${qualifiedName(volume)}`;
    default:
      return outcome satisfies never;
  }
}

/** Finds a trash entry by id, by store/name, or by a unique name. */
async function findTrashed({ client }: Session, ref: string): Promise<TrashEntryJson> {
  const { store, name } = splitRef(ref);
  const { items, unanswered } = await client.listOverStores<TrashEntryJson>('/v1/trash', { store });
  const found = items.filter((entry) => (isVolumeId(name) ? entry.id === name : entry.name === name));
  const [only, ...more] = found;
  // A store that can't be used may hold the entry, or a second one of that name. Ids are unique.
  const [silent] = unanswered;
  if (silent !== undefined && more.length === 0 && !(only !== undefined && isVolumeId(name)))
    throw lookupIncomplete(ref, silent, only, await storeProblem(client, silent));
  if (only !== undefined && more.length === 0) return only;
  if (only === undefined) {
    throw new StowageError(`volume ${escapeControls(ref)} is not in the trash`, {
      code: 'not-found',
      reason: 'trash-not-found',
      action: 'List the trash: stowage volume trash list',
    });
  }
  const which = found
    .map((entry) => `${entry.id} (${entry.store}/${entry.name}, deleted ${date(entry.deletedAt)})`)
    .join(', ');
  throw new StowageError(`${found.length} volumes named ${escapeControls(ref)} are in the trash`, {
    code: 'conflict',
    reason: 'trash-ambiguous',
    action: `Specify the id: ${which}`,
  });
}

/** Undefined: not known. */
async function storeProblem(client: Session['client'], store: string): Promise<StoreJson['problem'] | undefined> {
  const found = await client.get<StoreJson>(`/v1/stores/${encodeURIComponent(store)}`).catch(() => undefined);
  return found?.problem;
}

function lookupIncomplete(
  ref: string,
  store: string,
  found: TrashEntryJson | undefined,
  problem: StoreJson['problem'] | undefined,
): StowageError {
  const down = problem?.message ?? `store ${escapeControls(store)} is unavailable`;
  return new StowageError(`cannot search the trash for ${escapeControls(ref)}: ${down}`, {
    code: 'unavailable',
    reason: 'trash-lookup-incomplete',
    action:
      found === undefined
        ? (problem?.action ??
          `Repair the store and retry; find the cause with: stowage store check ${escapeControls(store)}`)
        : `To select the volume that was found, specify its store: ${qualifiedName(found)}`,
  });
}

async function restore(session: Session, ref: string, options: { readonly name?: string }): Promise<void> {
  const { client, out } = session;
  const entry = await findTrashed(session, ref);
  const body = options.name === undefined ? {} : { name: options.name };
  const restored = await runLongOperation<VolumeJson>(session, {
    method: 'POST',
    path: `/v1/trash/${encodeURIComponent(entry.id)}/restore`,
    body,
  });
  const volume = restored ?? (await client.get<VolumeJson>(`/v1/volumes/${encodeURIComponent(entry.id)}`));
  if (out.json) return out.value(volume);
  out.line(out.quiet ? escapeControls(volume.id) : `restored ${qualifiedName(volume)}`);
}

async function listTrash(session: Session, options: { readonly store?: string }): Promise<void> {
  const { items, unanswered } = await session.client.listOverStores<TrashEntryJson>('/v1/trash', { ...options });
  const of = options.store ?? (unanswered.length > 0 ? 'the other stores' : undefined);
  printTrash(session, items, of === undefined ? 'the trash is empty' : `no volume of ${of} is in the trash`);
  session.out.noteUnanswered(unanswered, 'its trash is not shown');
}

function printTrash({ out, clock }: Session, entries: readonly TrashEntryJson[], nothing: string): void {
  const row = (entry: TrashEntryJson): string[] => [
    `${entry.store}/${entry.name}`,
    size(entry.bytes),
    `${age(entry.deletedAt, clock.now())} ago`,
    entry.expiresAt === null ? 'never' : date(entry.expiresAt),
    entry.id,
  ];
  if (out.json) out.value(entries);
  else if (out.quiet) entries.forEach((entry) => void out.line(escapeControls(entry.id)));
  else if (entries.length === 0) out.note(nothing);
  else out.table(['VOLUME', 'SIZE', 'DELETED', 'KEPT UNTIL', 'ID'], entries.map(row));
}

async function purge(session: Session, refs: readonly string[]): Promise<number> {
  const { out } = session;
  refs.forEach(splitRef);
  return await forEachVolume(session, refs, async (ref) => {
    const entry = await findTrashed(session, ref);
    await runLongOperation(session, { method: 'DELETE', path: `/v1/trash/${encodeURIComponent(entry.id)}` });
    out.reportDone(`permanently deleted ${qualifiedName(entry)}`);
    return { id: entry.id, store: entry.store, name: entry.name };
  });
}
