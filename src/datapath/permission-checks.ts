import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { accessRight } from '#wire/nfs3/procedures.ts';
import type { Context } from './context.ts';
import { access, type IdentityOptions, type Rights } from './identity.ts';

/** The bits of a mode for one of owner, group and others, as access(2) has them too. */
const may = { run: 1, write: 2, read: 4 } as const;
/** The kernel's own flag of a file that is opened to be run: that takes no right to read it. */
const toRun = 0x20;

type Checked = Required<Pick<Operations, 'access' | 'open' | 'opendir' | 'setattr'>>;

/**
 * For a mount whose users are all one to the server: the kernel does not check what they may do, since it knows them by other
 * numbers. What takes a call to the server is checked there, as that one user; what does not is checked here: to open something,
 * above all, since what is read may be cached, and what is written is answered before the server has it. And NFS lets the
 * owner of a file cut it that he may not write to.
 */
export function withPermissionChecks(
  { nfs, server, attributes }: Context,
  one: Pick<IdentityOptions, 'uid' | 'gid'>,
  operations: Omit<Checked, 'access'>,
): Checked {
  async function ask(request: Request, id: number, needs: number): Promise<void> {
    const mask = rightsFor(needs);
    const granted = await server.on(request, id, (handle, how) => nfs.access(handle, mask, how), access.none);
    if (!isGranted(needs, granted)) throw new Errno('EACCES');
  }

  /** Undefined: he may, by what is known. Where that says no, the server may take him for somebody else. */
  function check(request: Request, id: number, needs: number, known: Rights | undefined): Promise<void> | undefined {
    return known !== undefined && isAllowed(one, known, needs) ? undefined : ask(request, id, needs);
  }

  const { open, opendir, setattr } = operations;
  return {
    access: (id, mask, request) =>
      check(request, id, mask, attributes.freshMs(id) > 0 ? attributes.last(id) : undefined),
    // If that has changed meanwhile, it is found out by opening it, and the kernel comes again.
    open: (id, flags, request) => {
      const asked = check(request, id, neededFor(flags), attributes.last(id));
      return asked === undefined ? open(id, flags, request) : asked.then(() => open(id, flags, request));
    },
    opendir: (id, flags, request) => {
      const asked = check(request, id, may.read, attributes.last(id));
      return asked === undefined ? opendir(id, flags, request) : asked.then(() => opendir(id, flags, request));
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

/** RFC 1813 §3.3.4: of what a right does not apply to, it is not granted. */
const [writing, running] = [accessRight.modify | accessRight.extend, accessRight.lookup | accessRight.execute];

const rightsFor = (needs: number): number =>
  ((needs & may.read) === 0 ? 0 : accessRight.read) |
  ((needs & may.write) === 0 ? 0 : writing) |
  ((needs & may.run) === 0 ? 0 : running);

const isGranted = (needs: number, granted: number): boolean =>
  ((needs & may.read) === 0 || (granted & accessRight.read) !== 0) &&
  ((needs & may.write) === 0 || (granted & writing) === writing) &&
  ((needs & may.run) === 0 || (granted & running) !== 0);
