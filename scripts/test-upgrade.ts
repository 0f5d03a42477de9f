import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

/** `npm run test:upgrade -- COMMIT`: upgrades from that commit to these sources while volumes are in use. */
const [commit, ...args] = process.argv.slice(2);
if (commit === undefined) {
  console.error('Name the commit to upgrade from: npm run test:upgrade -- COMMIT');
  process.exitCode = 2;
} else {
  const { status } = spawnSync(process.execPath, [join(import.meta.dirname, 'test.ts'), 'e2e/upgrade-from/', ...args], {
    env: { ...process.env, STOWAGE_UPGRADE_FROM: commit },
    stdio: 'inherit',
  });
  process.exitCode = status ?? 1;
}
