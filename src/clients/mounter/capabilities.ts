import { readFile } from 'node:fs/promises';

/** Numbers from linux/capability.h. */
const capabilityBits = { CAP_SYS_ADMIN: 21n, CAP_SYS_RESOURCE: 24n } as const;

/** Whether this process has the capability now. False on systems without /proc/self/status. */
export async function hasCapability(name: keyof typeof capabilityBits, file = '/proc/self/status'): Promise<boolean> {
  const status = await readFile(file, 'utf8').catch(() => '');
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1];
  return effective !== undefined && ((BigInt(`0x${effective}`) >> capabilityBits[name]) & 1n) === 1n;
}
