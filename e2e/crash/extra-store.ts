import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { hasStatus, orNotFoundOnRetry } from './checked-call.ts';
import type { Actions, WorkerState } from './workload.ts';

/** A store that is repeatedly added and removed. It always has the same single volume. */
export function createExtraStore({ ask, name: worker, extras }: WorkerState) {
  const [store, root] = [`${worker}-extra`, join(extras, `${worker}-extra`)];
  let [added, id] = [false, ''];
  const actions: Actions = {
    'add-store': async () => {
      if (added) return false;
      await mkdir(root, { recursive: true });
      await ask('POST', '/v1/stores', { name: store, uri: `local://${root}` }, hasStatus(201));
      added = true;
      const { body } =
        id === ''
          ? await ask('POST', '/v1/volumes', { store, name: 'inside' }, hasStatus(201))
          : await ask('GET', `/v1/volumes/${store}..inside`, undefined, hasStatus(200));
      if (id !== '' && id !== body['id']) throw new Error(`${store}/inside was ${id}, and is ${body['id']} now`);
      id = String(body['id']);
      return true;
    },
    'remove-store': async () => {
      if (!added) return false;
      await ask('DELETE', `/v1/stores/${store}`, undefined, orNotFoundOnRetry(204));
      added = false;
      await ask('GET', `/v1/volumes/${id}`, undefined, hasStatus(404));
      return true;
    },
  };
  return { actions, volumes: () => (added ? [{ id, store, name: 'inside', bytes: undefined }] : []) };
}
