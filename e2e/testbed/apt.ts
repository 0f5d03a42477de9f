import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { onPath, type Run } from './component.ts';

const policyFile = '/usr/sbin/policy-rc.d';
// Exit status 101 means "action forbidden by policy". Packages must not start their daemons, because tests start their
// own.
const policy = '#!/bin/sh\n# Put here by the Stowage test bed while it installs packages; safe to remove.\nexit 101\n';

export function cannotInstall(): string | undefined {
  if (onPath('apt-get') === undefined) return 'this machine has no apt-get';
  return process.getuid?.() === 0 ? undefined : 'installing Debian packages needs root';
}

/** Installs all packages in one call. Updates the package lists only if that is necessary. */
export async function install(wanted: readonly string[], run: Run): Promise<readonly string[]> {
  const apt = (...args: readonly string[]): Promise<string> =>
    run('apt-get', ['-o', 'DPkg::Lock::Timeout=300', ...args]);
  const isKnown = (name: string): Promise<boolean> =>
    run('apt-cache', ['show', '--no-all-versions', name]).then(
      () => true,
      () => false,
    );
  const requiredNames = wanted.filter((name) => !name.endsWith('?'));
  let fresh = false;
  const update = async (): Promise<void> => {
    await apt('update');
    fresh = true;
  };
  if (!(await Promise.all(requiredNames.map(isKnown))).every(Boolean)) await update();
  const optionalNames = wanted.filter((name) => name.endsWith('?')).map((name) => name.slice(0, -1));
  const known = await Promise.all(optionalNames.map(async (name) => ((await isKnown(name)) ? [name] : [])));
  const packages = [...new Set([...requiredNames, ...known.flat()])].sort();
  const attempt = (): Promise<string> => apt('install', '-y', '--no-install-recommends', ...packages);
  using _quiet = preventDaemonStarts();
  try {
    await attempt();
  } catch (cause) {
    // Stale lists refer to versions that the mirror no longer has.
    if (fresh) throw cause;
    await update();
    await attempt();
  }
  return packages;
}

function preventDaemonStarts(): Disposable {
  const before = textOf(policyFile);
  // Keeps a policy of the administrator, but replaces one that a killed run left behind.
  if (before !== undefined && before !== policy) return { [Symbol.dispose]: () => undefined };
  writeFileSync(policyFile, policy, { mode: 0o755 });
  return { [Symbol.dispose]: () => rmSync(policyFile, { force: true }) };
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
