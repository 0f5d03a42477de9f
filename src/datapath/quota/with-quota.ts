import { unlessAborted } from '#base/aborted.ts';
import { asErrno } from '../errors.ts';
import type { RequestWait } from '../request-wait.ts';
import type { Writes } from '../writes.ts';
import type { Charges } from './charges.ts';

/** Accepts no write that exceeds the quota. */
export function withQuota(writes: Writes, charges: Charges, waitFor: RequestWait): Writes {
  return {
    ...writes,
    get revalidations() {
      return writes.revalidations;
    },
    write: (id, at, data, request) => {
      const room = charges.write(id, at.offset, data.length, request);
      if (room === undefined) return writes.write(id, at, data, request);
      return waitFor(request, (signal) => unlessAborted(room, signal).catch(fail))
        .then(() => writes.write(id, at, data, request))
        .catch((cause: unknown) => {
          charges.abandoned(request);
          throw cause;
        });
    },
    behind: {
      ...writes.behind,
      get files() {
        return writes.behind.files;
      },
      restore: (written) => {
        charges.restored(written.place, written.data.length);
        writes.behind.restore(written);
      },
    },
  };
}

function fail(cause: unknown): never {
  throw asErrno(cause);
}
