import type { Log } from '#base/log.ts';
import type { DescriptorCopies } from '#keeper/descriptor-copies.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError } from '#keeper/protocol.ts';

/**
 * Call this for a newly connected keeper, before its first use. A keeper that was killed together with all its processes has no
 * descriptors: this restores them. From then on this process holds copies of the keeper's descriptors. Throws if the outcome is unknown.
 * The caller must not use that keeper: a keeper that has a mount of its own refuses a restore.
 */
export async function shareDescriptors(
  client: KeeperClient,
  copies: DescriptorCopies,
  { keeper, log }: { readonly keeper: string; readonly log: Log },
  signal: AbortSignal,
): Promise<void> {
  const { shares } = await client.status(signal);
  if (shares !== true) {
    log.info('a keeper of an older version cannot share its descriptors with this process', { keeper });
    // This keeper cannot take the copies, and no other keeper will serve their mounts.
    copies.drop();
    return;
  }
  const { held, mounts } = copies;
  if (held !== undefined && mounts.length > 0 && (await isAccepted(client.restore(held, signal))))
    log.warn('restored the descriptors of a keeper that had started without any', { keeper, mounts: mounts.length });
  await client.share(signal);
}

/** False: the keeper already has mounts, because its data path or another agent was faster. */
async function isAccepted(restore: Promise<void>): Promise<boolean> {
  try {
    await restore;
    return true;
  } catch (cause) {
    if (cause instanceof KeeperError && cause.reason === 'occupied') return false;
    throw cause;
  }
}
