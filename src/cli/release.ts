import { StowageError } from '#core/errors.ts';
import type { VolumeDetailJson } from '#front/rest/schemas.ts';
import { qualifiedName, refPath } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { invalid } from './problem.ts';
import type { MakeAction, Session } from './session.ts';
import type { Cell } from './table.ts';
import { date, escapeControls, plural, shellWord } from './text.ts';

type HostUse = NonNullable<VolumeDetailJson['uses']>[number];

export function addReleaseCommand(volume: StowageCommand, act: MakeAction): void {
  volume
    .command('release')
    .description(
      'Break the use record of a host that is permanently gone, so that the volume can be deleted or used elsewhere.\n' +
        'This does not stop a running host: it continues to write, and soon renews its use record.',
    )
    .argument('<volume>', 'store/name, name or id')
    .requiredOption('--host <host>', 'id of the host, as shown by volume show')
    .option(
      '--yes',
      'confirm that the host is permanently gone (without it: only print the record that would be broken)',
    )
    .example('stowage volume show silver/photos', 'which hosts use it?')
    .example(
      'stowage volume release silver/photos --host 43ba92ad --yes',
      'break the record of a host that is permanently gone',
    )
    .action(act(release));
}

const maxUsersShown = 5;

function usersOf({ users }: HostUse): string {
  const some = users.slice(0, maxUsersShown).map(({ kind, name }) => `${kind} ${name}`);
  return some.length === 0
    ? 'no recorded user'
    : some.join(', ') + (users.length > maxUsersShown ? ` and ${users.length - maxUsersShown} more` : '');
}

/** `far (host-2): container db; writer; renewed 2026-11-15 08:30 UTC` */
function useText(use: HostUse): string {
  const last = `${use.stale ? 'not renewed since' : 'renewed'} ${date(use.renewedAt)}`;
  return [`${use.node} (${use.host}): ${usersOf(use)}`, ...(use.writer ? ['writer'] : []), last].join('; ');
}

/** Empty for a store without use records. */
export function useFields(uses: VolumeDetailJson['uses']): [string, Cell[]][] {
  if (uses === null) return [];
  return [['hosts', uses.map((use) => ({ text: useText(use), tone: use.stale ? 'warn' : 'plain' }))]];
}

interface ReleaseFlags {
  readonly host: string;
  readonly yes?: boolean;
}

async function release({ client, out }: Session, ref: string, { host, yes }: ReleaseFlags): Promise<void> {
  const volume = await client.get<VolumeDetailJson>(`/v1/volumes/${refPath(ref)}`);
  if (yes !== true) throw confirmationRequired(qualifiedName(volume), host, volume.uses ?? []);
  // Use the id: the name may belong to another volume by now.
  const path = `/v1/volumes/${encodeURIComponent(volume.id)}/uses/${encodeURIComponent(host)}`;
  await client.change({ method: 'DELETE', path });
  if (out.json) return out.value({ id: volume.id, store: volume.store, name: volume.name, host });
  const left = (volume.uses?.length ?? 1) - 1;
  out.reportDone(
    `broke the use record of host ${escapeControls(host)} on ${qualifiedName(volume)}; ${left === 0 ? 'no host uses' : `${plural(left, 'other host')} still use${left === 1 ? 's' : ''}`} it`,
  );
}

function confirmationRequired(name: string, host: string, uses: readonly HostUse[]): StowageError {
  const use = uses.find((one) => one.host === host);
  if (use === undefined)
    return new StowageError(`host '${escapeControls(host)}' has no use record of ${name}`, {
      code: 'not-found',
      reason: 'use-unknown',
      action: `List the use records with their host ids: stowage volume show ${shellWord(name)}`,
    });
  return invalid(
    `this would break the use record of ${escapeControls(useText(use))}`,
    'confirmation-required',
    `A running host would continue to write. If the host is permanently gone: stowage volume release ${shellWord(name)} --host ${shellWord(host)} --yes`,
  );
}
