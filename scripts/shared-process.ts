import { globSync } from 'node:fs';
import { slowFiles } from './slow-files.ts';

/**
 * Where tests leave nothing in their process. The other folders have tests that open descriptors, count them, and start programs that hold them.
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

/** Files that change or measure state of the process, or would see the state that another file left. */
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
 * The quick test files that run one after another in the same few processes. To start a process for each, and to load the same modules in it,
 * takes longer than most of them run.
 */
export function filesThatShareProcesses(repository: string): readonly string[] {
  return globSync(`src/{${folders.join(',')}}/**/*.test.ts`, { cwd: repository })
    .filter((path) => !(path in slowFiles) && !needOwnProcess.includes(path))
    .toSorted();
}
