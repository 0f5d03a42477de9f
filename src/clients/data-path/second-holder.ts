import type { Log } from '#base/log.ts';
import type { DescriptorCopies } from '#keeper/descriptor-copies.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError } from '#keeper/protocol.ts';

/**
 * With a keeper that was just connected to, before anybody uses it: one that has nothing, because it was killed with all that was its
 * own, is given everything back; then what it has is held here, too, from now on. Throws where that is not known: then it must not be
 * used, since with the first mount of its own it could not be given the others any more.
 */
export async function holdToo(
  client: KeeperClient,
  copies: DescriptorCopies,
  { keeper, log }: { readonly keeper: string; readonly log: Log },
  signal: AbortSignal,
): Promise<void> {
  const { shares } = await client.status(signal);
  if (shares !== true) {
    log.info('a keeper of an older version: nobody else holds what it has', { keeper });
    // It cannot be given them, and nobody else will serve them.
    copies.drop();
    return;
  }
  const { held, mounts } = copies;
  if (held !== undefined && mounts.length > 0 && (await isTaken(client.restore(held, signal))))
    log.warn('a keeper that came without anything has everything again', { keeper, mounts: mounts.length });
  await client.share(signal);
}

/** False: it has mounts, since its data path or another agent was faster. */
async function isTaken(giving: Promise<void>): Promise<boolean> {
  try {
    await giving;
    return true;
  } catch (cause) {
    if (cause instanceof KeeperError && cause.reason === 'occupied') return false;
    throw cause;
  }
}
