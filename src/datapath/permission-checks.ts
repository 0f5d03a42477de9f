import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { accessRight } from '#wire/nfs3/procedures.ts';
import { access, type IdentityOptions, type Rights } from './identity.ts';
import type { MountContext } from './mount-context.ts';

/** Mode bits of one class (owner, group or others); access(2) uses the same. */
const modeBit = { run: 1, write: 2, read: 4 } as const;
/** The kernel's flag for a file opened for execution, which needs no read permission. */
const execOpenFlag = 0x20;

type CheckedOperations = Required<Pick<Operations, 'access' | 'open' | 'opendir' | 'setattr'>>;

/**
 * For a mount whose users are all one user to the server. The kernel cannot check permissions, since it knows the users
 * by other ids. The server checks operations that call it, as that user. The data path checks the others, above all
 * open: reads may be cached, and writes are answered before the server has them. Also, NFS lets the owner
 * truncate a file that he may not write to.
 */
export function withPermissionChecks(
  { nfs, server, attributes }: MountContext,
  serverUser: Pick<IdentityOptions, 'uid' | 'gid'>,
  operations: Omit<CheckedOperations, 'access'>,
): CheckedOperations {
  async function checkOnServer(request: Request, id: number, needs: number): Promise<void> {
    const mask = rightsFor(needs);
    const granted = await server.callOn(
      request,
      id,
      (handle, options) => nfs.access(handle, mask, options),
      access.none,
    );
    if (!isGranted(needs, granted)) throw new Errno('EACCES');
  }

  /** Undefined: permitted by known attributes. If they deny it, ask: the server may map the caller to another user. */
  function check(request: Request, id: number, needs: number, known: Rights | undefined): Promise<void> | undefined {
    return known !== undefined && isAllowed(serverUser, known, needs) ? undefined : checkOnServer(request, id, needs);
  }

  const { open, opendir, setattr } = operations;
  return {
    access: (id, mask, request) =>
      check(request, id, mask, attributes.freshMs(id) > 0 ? attributes.lastSeen(id) : undefined),
    // If the attributes changed meanwhile, the open finds out, and the kernel retries.
    open: (id, flags, request) => {
      const checked = check(request, id, neededFor(flags), attributes.lastSeen(id));
      return checked === undefined ? open(id, flags, request) : checked.then(() => open(id, flags, request));
    },
    opendir: (id, flags, request) => {
      const checked = check(request, id, modeBit.read, attributes.lastSeen(id));
      return checked === undefined ? opendir(id, flags, request) : checked.then(() => opendir(id, flags, request));
    },
    setattr: async (id, set, request) => {
      if (set.size !== undefined && set.fh === undefined)
        await check(request, id, modeBit.write, attributes.lastSeen(id));
      return await setattr(id, set, request);
    },
  };
}

function neededFor(flags: number): number {
  if ((flags & execOpenFlag) !== 0) return modeBit.run;
  const truncates = (flags & constants.O_TRUNC) !== 0;
  const accessMode = flags & (constants.O_WRONLY | constants.O_RDWR);
  return (accessMode === constants.O_WRONLY ? 0 : modeBit.read) | (accessMode === 0 && !truncates ? 0 : modeBit.write);
}

function isAllowed(
  serverUser: Pick<IdentityOptions, 'uid' | 'gid'>,
  { uid, gid, mode }: Rights,
  needs: number,
): boolean {
  const groupOrOther = serverUser.gid === gid ? mode >>> 3 : mode;
  return ((serverUser.uid === uid ? mode >>> 6 : groupOrOther) & needs) === needs;
}

/** RFC 1813 §3.3.4: rights that do not apply to an object are not granted. */
const [writeRights, executeRights] = [
  accessRight.modify | accessRight.extend,
  accessRight.lookup | accessRight.execute,
];

const rightsFor = (needs: number): number =>
  ((needs & modeBit.read) === 0 ? 0 : accessRight.read) |
  ((needs & modeBit.write) === 0 ? 0 : writeRights) |
  ((needs & modeBit.run) === 0 ? 0 : executeRights);

const isGranted = (needs: number, granted: number): boolean =>
  ((needs & modeBit.read) === 0 || (granted & accessRight.read) !== 0) &&
  ((needs & modeBit.write) === 0 || (granted & writeRights) === writeRights) &&
  ((needs & modeBit.run) === 0 || (granted & executeRights) !== 0);
