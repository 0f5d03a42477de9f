import { globSync } from 'node:fs';
import { slowFiles } from './slow-files.ts';

/**
 * Folders whose tests leave nothing in their process. Tests of other folders open and count descriptors, and start
 * programs that inherit them.
 */
const folders = [
  'app',
  'base',
  'cli',
  'clients',
  'cluster',
  'controllers',
  'core',
  'front',
  'records',
  'stores',
  'wire',
];

/** Files that change or measure the state of their process, or would see what another file left there. */
export const needOwnProcess: readonly string[] = [
  'src/app/agent.test.ts',
  'src/app/controller.test.ts',
  'src/app/memory-release.test.ts',
  'src/base/clock.test.ts',
  'src/base/linux/watch-readable.test.ts',
  'src/clients/data-path/unreachable-keeper.test.ts',
  'src/clients/mounter/hold-local.test.ts',
  'src/clients/pod-network.test.ts',
  'src/core/whole-program.test.ts',
  'src/stores/local/hostile.test.ts',
  'src/stores/local/open.test.ts',
  'src/wire/nfs3/server/descriptors.test.ts',
  'src/wire/nfs3/server/listing.test.ts',
  'src/wire/nfs3/server/server.test.ts',
  'src/wire/rpc/server.test.ts',
];

/**
 * The quick test files that run one after another in the same few processes. For most of them, starting a process and
 * loading the modules takes longer than the tests.
 */
export function filesThatShareProcesses(repository: string): readonly string[] {
  return globSync(`src/{${folders.join(',')}}/**/*.test.ts`, { cwd: repository })
    .filter((path) => !(path in slowFiles) && !needOwnProcess.includes(path))
    .toSorted();
}
