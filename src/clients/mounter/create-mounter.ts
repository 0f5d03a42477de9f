import type { Mounter } from '#core/ports.ts';
import { hasCapability } from './capabilities.ts';
import { createLinuxMounter, type LinuxMounterOptions } from './linux-mounter.ts';
import { readMountTable } from './mountinfo.ts';
import { createUnableMounter } from './unable-mounter.ts';

export interface MounterOptions extends LinuxMounterOptions {
  readonly platform?: string;
  readonly status?: string;
}

/** Creates the mounter that this machine and the rights of this process allow. */
export async function createMounter(options: MounterOptions): Promise<Mounter> {
  const { platform = process.platform, readTable = readMountTable } = options;
  if (platform !== 'linux') {
    return createUnableMounter(
      { why: `this is ${platform}, and mounting needs Linux`, action: 'Run Stowage on Linux to mount volumes.' },
      async () => [],
    );
  }
  if (!(await hasCapability('CAP_SYS_ADMIN', options.status))) {
    return createUnableMounter(
      {
        why: 'this process lacks CAP_SYS_ADMIN',
        action: 'Run Stowage as root; in a container, add the capability: docker run --cap-add SYS_ADMIN',
      },
      async () => (await readTable()).visible(),
    );
  }
  return createLinuxMounter(options);
}
