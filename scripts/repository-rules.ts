import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { lockfileGaps } from './lockfile.ts';

/** Larger files belong in the cache folder of the test bed, or must be generated. */
const maxBytes = 512 * 1024;
const lockfile = 'package-lock.json';

/** The problems of files that are committed or will be. */
export function repositoryFaults(root: string): readonly string[] {
  const faults: string[] = [];
  // Download addresses would bind all users of the lockfile to one registry.
  const lock = readFileSync(join(root, lockfile), 'utf8');
  if (/^\s*"resolved":/m.test(lock)) {
    faults.push(`${lockfile} holds "resolved" addresses: run npm install again with the repository's .npmrc`);
  }
  const gaps = Object.keys(lockfileGaps(JSON.parse(lock))).length;
  if (gaps > 0) faults.push(`${lockfile} lacks ${gaps} packages for other platforms: run node scripts/lockfile.ts`);
  for (const path of committed(root)) {
    const { size } = statSync(join(root, path));
    if (size > maxBytes && path !== lockfile) faults.push(`${path} has ${size} bytes, ${maxBytes} is the most`);
    else if (names(readFileSync(join(root, path), 'utf8'), root))
      faults.push(`${path} holds a path of this machine: ${root}`);
  }
  return faults;
}

/** Only longer paths are searched: `/src` or `/app` occur in many texts. */
function names(text: string, root: string): boolean {
  return root.split('/').length > 2 && text.includes(`${root}/`);
}

function committed(root: string): readonly string[] {
  if (!existsSync(join(root, '.git'))) return [];
  const args = ['ls-files', '-z', '--cached', '--others', '--exclude-standard'];
  const listed = execFileSync('git', ['-c', `safe.directory=${root}`, ...args], {
    cwd: root,
    encoding: 'utf8',
    timeout: 30_000,
  });
  return listed.split('\0').filter((path) => path !== '' && existsSync(join(root, path)));
}
