import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { accessRight } from '#wire/nfs3/procedures.ts';
import type { Context } from './context.ts';
import { access, type IdentityOptions, type Rights } from './identity.ts';

/** Mode bits of one class (owner, group or others); access(2) uses the same. */
const may = { run: 1, write: 2, read: 4 } as const;
/** The kernel's flag for a file opened for execution, which needs no read permission. */
const toRun = 0x20;

type Checked = Required<Pick<Operations, 'access' | 'open' | 'opendir' | 'setattr'>>;

/**
 * For a mount whose users are all one user to the server. The kernel cannot check permissions there, since it knows the
 * users by other ids. Operations that call the server are checked by it, as that user. The others are checked here,
 * above all open: reads may be cached, and writes are answered before the server has them. Also, NFS lets the owner
 * truncate a file that he may not write to.
 */
export function withPermissionChecks(
  { nfs, server, attributes }: Context,
  one: Pick<IdentityOptions, 'uid' | 'gid'>,
  operations: Omit<Checked, 'access'>,
): Checked {
  async function ask(request: Request, id: number, needs: number): Promise<void> {
    const mask = rightsFor(needs);
    const granted = await server.callOn(request, id, (handle, how) => nfs.access(handle, mask, how), access.none);
    if (!isGranted(needs, granted)) throw new Errno('EACCES');
  }

  /** Undefined: permitted by known attributes. If they deny it, ask: the server may map the caller to another user. */
  function check(request: Request, id: number, needs: number, known: Rights | undefined): Promise<void> | undefined {
    return known !== undefined && isAllowed(one, known, needs) ? undefined : ask(request, id, needs);
  }

  const { open, opendir, setattr } = operations;
  return {
    access: (id, mask, request) =>
      check(request, id, mask, attributes.freshMs(id) > 0 ? attributes.last(id) : undefined),
    // If the attributes changed meanwhile, the open finds out, and the kernel retries.
    open: (id, flags, request) => {
      const checked = check(request, id, neededFor(flags), attributes.last(id));
      return checked === undefined ? open(id, flags, request) : checked.then(() => open(id, flags, request));
    },
    opendir: (id, flags, request) => {
      const checked = check(request, id, may.read, attributes.last(id));
      return checked === undefined ? opendir(id, flags, request) : checked.then(() => opendir(id, flags, request));
    },
    setattr: async (id, set, request) => {
      if (set.size !== undefined && set.fh === undefined) await check(request, id, may.write, attributes.last(id));
      return await setattr(id, set, request);
    },
  };
}

function neededFor(flags: number): number {
  if ((flags & toRun) !== 0) return may.run;
  const isCut = (flags & constants.O_TRUNC) !== 0;
  const way = flags & (constants.O_WRONLY | constants.O_RDWR);
  return (way === constants.O_WRONLY ? 0 : may.read) | (way === 0 && !isCut ? 0 : may.write);
}

function isAllowed(one: Pick<IdentityOptions, 'uid' | 'gid'>, { uid, gid, mode }: Rights, needs: number): boolean {
  const own = one.gid === gid ? mode >>> 3 : mode;
  return ((one.uid === uid ? mode >>> 6 : own) & needs) === needs;
}

/** RFC 1813 §3.3.4: rights that do not apply to an object are not granted. */
const [writing, running] = [accessRight.modify | accessRight.extend, accessRight.lookup | accessRight.execute];

const rightsFor = (needs: number): number =>
  ((needs & may.read) === 0 ? 0 : accessRight.read) |
  ((needs & may.write) === 0 ? 0 : writing) |
  ((needs & may.run) === 0 ? 0 : running);

const isGranted = (needs: number, granted: number): boolean =>
  ((needs & may.read) === 0 || (granted & accessRight.read) !== 0) &&
  ((needs & may.write) === 0 || (granted & writing) === writing) &&
  ((needs & may.run) === 0 || (granted & running) !== 0);
