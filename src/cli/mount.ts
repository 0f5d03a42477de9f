import { realpath } from 'node:fs/promises';
import { isAbsolute, resolve } from 'node:path';
import { StowageError } from '#core/errors.ts';
import type { MountJson } from '#front/rest/schemas.ts';
import { refPath } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { invalid } from './problem.ts';
import type { MakeAction, Session } from './session.ts';
import { age, escapeControls } from './text.ts';

export function addMountCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('mount')
    .description('Mount a volume at a path on the server’s host. Creates the directory if it does not exist.')
    .argument('<volume>', 'store/name, name or id')
    .argument('<path>', 'path to mount the volume at')
    .option('--read-only', 'mount it read-only')
    .example('stowage mount demo /mnt/demo', 'mount demo at /mnt/demo')
    .example('stowage mount local/demo ./demo --read-only', 'read-only, at a path relative to the current directory')
    .action(act(mount));
  program
    .command('unmount')
    .alias('umount')
    .description('Unmount a volume from a path.')
    .argument('<path-or-volume>', 'the path, or the volume if a path follows')
    .argument('[path]', 'the path')
    .option(
      '--force',
      'unmount even if the volume is in use or its server does not respond; processes that use it get errors',
    )
    .example('stowage unmount /mnt/demo', 'unmount whatever volume is mounted at the path')
    .example('stowage unmount local/demo /mnt/demo', 'unmount the path only if this volume is mounted there')
    .example('stowage unmount /mnt/photos --force', 'the server of the volume is down, and processes hang')
    .action(act(unmount));
  program
    .command('mounts')
    .description('List mounts and their users.')
    .example('stowage mounts', 'all mounts of Stowage on this host')
    .example('stowage mounts --quiet', 'print only the paths')
    .action(act(list));
}

/** Relative paths are relative to this process, so they are useless to a server on another machine. */
function target(session: Session, path: string): string {
  if (path === '')
    throw invalid(
      'the path is empty',
      'path-empty',
      'Specify a path such as /mnt/demo, or . for the current directory',
    );
  if (session.isLocalServer || isAbsolute(path)) return resolve(path);
  throw invalid(
    `the path ${escapeControls(path)} is relative, but the server has another working directory`,
    'path-relative',
    "Specify an absolute path on the server's host.",
  );
}

async function mount(
  session: Session,
  ref: string,
  path: string,
  options: { readonly readOnly?: boolean },
): Promise<void> {
  const { client, out } = session;
  const body = { target: target(session, path), readOnly: options.readOnly ?? false };
  const answer = await client.change({ method: 'POST', path: `/v1/volumes/${refPath(ref)}/mount`, body });
  const mounted = answer.body as MountJson;
  if (out.json) return out.value(mounted);
  out.reportDone(`mounted ${mounted.name ?? ref} at ${mounted.target}${mounted.readOnly ? ', read-only' : ''}`);
}

async function unmount(
  session: Session,
  first: string,
  second: string | undefined,
  options: { readonly force?: boolean },
): Promise<void> {
  const { client, out } = session;
  const at = target(session, second ?? first);
  const found = second === undefined ? await findMountAt(session, at) : { ref: refPath(first), target: at };
  const body = { target: found.target, ...(options.force === true ? { force: true } : {}) };
  await client.change({ method: 'POST', path: `/v1/volumes/${found.ref}/unmount`, body });
  out.reportDone(`unmounted ${found.target}`);
}

async function findMountAt(session: Session, at: string): Promise<{ readonly ref: string; readonly target: string }> {
  const mounts = await session.client.all<MountJson>('/v1/mounts');
  const isAt = (path: string): MountJson | undefined => mounts.find((one) => one.target === path);
  const found = isAt(at) ?? (session.isLocalServer ? isAt(await resolvePath(session, at)) : undefined);
  if (found !== undefined) return { ref: encodeURIComponent(found.volume), target: found.target };
  throw new StowageError(`no volume is mounted at ${escapeControls(at)}`, {
    code: 'not-found',
    reason: 'mount-not-found',
    action: 'List the mounts: stowage mounts',
  });
}

/** The server knows targets without symbolic links. realpath gets a timeout, since it can hang on a dead server. */
async function resolvePath({ clock, io }: Session, path: string): Promise<string> {
  using limit = clock.deadline(2000, io.signal);
  const timeout = clock.sleep(2000, limit.signal).then(
    () => path,
    () => path,
  );
  return await Promise.race([realpath(path).catch(() => path), timeout]);
}

async function list({ client, out, clock, services }: Session): Promise<void> {
  const { items: mounts, unreached } = await client.listOverStores<MountJson>('/v1/mounts');
  out.noteUnreached(unreached, 'its mounts are missing');
  if (out.json) return out.value(mounts);
  if (out.quiet) return mounts.forEach((one) => void out.line(escapeControls(one.target)));
  if (mounts.length === 0) {
    const how = services.cluster === undefined ? '; mount a volume with: stowage mount VOLUME PATH' : ' on any node';
    return out.note(`nothing is mounted${how}`);
  }
  const hasNodes = mounts.some(({ node }) => node !== undefined);
  out.table(
    ['VOLUME', ...(hasNodes ? ['NODE'] : []), 'PATH', 'MODE', 'STATE', 'USER', 'SINCE'],
    mounts.map((one) => [
      one.name ?? one.volume,
      ...(hasNodes ? [one.node ?? '-'] : []),
      one.target,
      one.readOnly ? 'ro' : 'rw',
      one.mounted ? { text: 'mounted', tone: 'good' } : { text: 'not mounted', tone: 'bad' },
      userText(one, hasNodes),
      age(one.since, clock.now()),
    ]),
  );
}

function userText({ user }: MountJson, hasNodes: boolean): string {
  if (user.kind === 'path') return user.node;
  return hasNodes ? `${user.kind} ${user.name}` : `${user.kind} ${user.name} on ${user.node}`;
}
