import type { Scope } from '#base/log.ts';
import type { Source } from '#core/model.ts';
import { mountFailure } from '../mounter/errors.ts';
import type { MountTable } from '../mounter/mountinfo.ts';
import type { Run } from '../mounter/run.ts';

type NfsSource = Extract<Source, { kind: 'nfs' }>;

interface HostParts {
  readonly run: Run;
  readonly readTable: () => Promise<MountTable>;
}

/** By the system's own NFS client, where the administrator says so. What it cannot do was refused with the store's options. */
export async function mountByHost(
  { run, readTable }: HostParts,
  source: NfsSource,
  place: string,
  scope: Scope,
): Promise<void> {
  const from = shown(source);
  const there = (await readTable()).at(place);
  if (there?.source === from) return;
  try {
    // By the helper, which the kernel's own mount call needs for the server's address.
    await run('mount.nfs', [from, place, '-o', hostOptions(source).join(',')], scope, { deadline: 45_000 });
  } catch (cause) {
    throw mountFailure(`the volume could not be mounted at ${place} by the system's NFS client`, cause);
  }
}

const shown = ({ hosts: [host], path }: NfsSource): string => `${host.includes(':') ? `[${host}]` : host}:${path}`;

function hostOptions({ way }: NfsSource): readonly string[] {
  const timeo = Math.max(1, Math.round((way.softMs ?? 60_000) / 100));
  return [
    'vers=3',
    'proto=tcp',
    `port=${way.port}`,
    'nosuid',
    'nodev',
    ...(way.mountPort === undefined ? [] : [`mountport=${way.mountPort}`]),
    ...(way.softMs === undefined ? ['hard'] : ['soft', `retrans=${Math.max(1, way.retries ?? 1)}`]),
    `timeo=${timeo}`,
    `rsize=${way.maxRead}`,
    `wsize=${way.maxWrite}`,
    ...(way.connections > 1 ? [`nconnect=${way.connections}`] : []),
    way.sourcePorts === 'privileged' ? 'resvport' : 'noresvport',
    // Without locks on the server: they then hold on this node, which the administrator allowed.
    ...(way.locks === 'node' ? ['nolock'] : []),
    ...(way.sync === true ? ['sync'] : []),
    ...(way.readOnly ? ['ro'] : []),
  ];
}
