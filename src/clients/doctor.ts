import { release } from 'node:os';
import { getuid } from 'node:process';
import { unlessAborted } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { type Check, type CheckContext, type Engine, type Finding, no, warn } from './doctor/check.ts';
import { engines } from './doctor/engines.ts';
import { programs, propagation, security, stateFolder } from './doctor/host.ts';
import { kernel } from './doctor/kernel.ts';
import { searchPath } from './mounter/tools.ts';

export type { Finding } from './doctor/check.ts';

export interface DoctorOptions {
  readonly clock: Clock;
  readonly stateFolder: string;
  /** Default: the usual sockets of engines. */
  readonly engines?: readonly Engine[];
  readonly platform?: string;
  readonly release?: string;
  /** The folder that contains proc, sys and dev. */
  readonly root?: string;
  readonly path?: string;
  /** For each group of checks; default 5 s. */
  readonly deadlineMs?: number;
}

const checks: Readonly<Record<string, Check>> = {
  kernel,
  'mount propagation': propagation,
  programs,
  'container engines': engines,
  'security modules': security,
  'state folder': stateFolder,
};

/** Checks that don't need Linux. */
const portableChecks = ['container engines', 'state folder'];

/** Reports what this machine can do for Stowage, and how to fix what it cannot. Changes nothing. */
export async function runChecks(options: DoctorOptions, scope: Scope): Promise<readonly Finding[]> {
  const { clock, platform = process.platform, root = '/', path = searchPath(), deadlineMs = 5_000 } = options;
  const context: CheckContext = {
    clock,
    timeoutMs: deadlineMs * 0.6,
    root,
    path,
    release: options.release ?? release(),
    stateFolder: options.stateFolder,
    engines: options.engines ?? usualEngines(),
  };
  const selected = Object.entries(checks).filter(([name]) => platform === 'linux' || portableChecks.includes(name));
  const groups = await Promise.all(
    selected.map(async ([name, check]) => {
      using limit = clock.deadline(deadlineMs, scope.signal);
      return await findingsInTime(name, check(context, limit.signal), limit.signal);
    }),
  );
  scope.signal.throwIfAborted();
  const unsupportedSystem = no(
    'operating system',
    `this is ${platform}: stores and volumes can be managed, volumes cannot be mounted`,
    'Run Stowage on Linux to mount volumes.',
  );
  return [...(platform === 'linux' ? [] : [unsupportedSystem]), ...groups.flat()];
}

/** A system call on a disk or server that does not answer cannot be cancelled, so it is abandoned. */
async function findingsInTime(
  name: string,
  work: Promise<readonly Finding[]>,
  signal: AbortSignal,
): Promise<readonly Finding[]> {
  try {
    return await unlessAborted(work, signal);
  } catch (cause) {
    const why = cause instanceof DeadlineExceeded || cause instanceof Error ? cause.message : String(cause);
    return [
      warn(name, `could not be determined: ${why}`, 'Look for a disk or a server that does not answer: dmesg | tail'),
    ];
  }
}

function usualEngines(): readonly Engine[] {
  const userFolder = `/run/user/${getuid?.() ?? 0}`;
  return [
    { name: 'Docker', socket: '/var/run/docker.sock' },
    { name: 'Docker (rootless)', socket: `${userFolder}/docker.sock` },
    { name: 'Podman', socket: '/run/podman/podman.sock' },
    { name: 'Podman (rootless)', socket: `${userFolder}/podman/podman.sock` },
  ];
}
