import { createCheckedCall, hasStatus } from './checked-call.ts';
import type { KilledServer, RetriedAnswer } from './killed-server.ts';
import { pick } from './seeded-random.ts';

/** What all clients together know. Every answer must agree with it. */
interface History {
  /** Ids that a successful creation returned. */
  readonly created: Set<string>;
  /** Ids for which a client has sent a delete, so the volume may be gone. */
  readonly deleteRequested: Set<string>;
  /** Ids that the server reported as deleted. */
  readonly deleted: Set<string>;
  /** The number of answers that reported a taken name. */
  nameConflicts: number;
}

interface ListedVolume {
  readonly id: string;
  readonly name: string;
}

/** Clients that use the same few names on one store. */
export function createCompetingClients(about: {
  readonly count: number;
  readonly stowage: KilledServer;
  readonly store: string;
  readonly names: readonly string[];
  readonly random: () => number;
}): { readonly steps: readonly (() => Promise<void>)[]; readonly history: History; check(): Promise<void> } {
  const history: History = { created: new Set(), deleteRequested: new Set(), deleted: new Set(), nameConflicts: 0 };
  const clients = Array.from({ length: about.count }, (_, index) => createClient(`client${index}`, about, history));
  return {
    history,
    steps: clients.map(({ step }) => step),
    check: async () => {
      const found = (await clients[0]?.list()) ?? [];
      const present = new Set(found.map(({ id }) => id));
      for (const id of present) if (!history.created.has(id)) throw new Error(`no creation returned ${id}`);
      const inconsistentIds = [...history.created].filter((id) => present.has(id) === history.deleted.has(id));
      if (inconsistentIds.length > 0)
        throw new Error(`both present and deleted, or neither: ${inconsistentIds.join(', ')}`);
    },
  };
}

function createClient(clientName: string, about: Parameters<typeof createCompetingClients>[0], history: History) {
  const { store, names, random } = about;
  const callApi = createCheckedCall(clientName, about.stowage, random);
  const ownIds = new Set<string>();
  const name = (): string => pick(names, random) ?? '';
  const fail = (what: string): never => {
    throw new Error(`${clientName}: ${what}`);
  };
  const isTaken = ({ status, body }: RetriedAnswer): boolean => {
    if (status !== 409 || body['reason'] !== 'volume-exists') return false;
    history.nameConflicts++;
    return true;
  };

  async function find(volumeName: string): Promise<string | undefined> {
    const deletedIds = new Set(history.deleted);
    const { status, body } = await callApi(
      'GET',
      `/v1/volumes/${store}..${volumeName}`,
      undefined,
      hasStatus(200, 404),
    );
    if (status === 404) return undefined;
    const id = String(body['id']);
    if (deletedIds.has(id)) fail(`${volumeName} is ${id}, which was reported as deleted`);
    return id;
  }

  async function list(): Promise<readonly ListedVolume[]> {
    const [deletedIds, created] = [new Set(history.deleted), new Set(history.created)];
    const { body } = await callApi('GET', `/v1/volumes?store=${store}`, undefined, hasStatus(200));
    const items = body['items'] as readonly ListedVolume[];
    const ids = new Set(items.map(({ id }) => id));
    if (new Set(items.map((volume) => volume.name)).size < items.length) fail(`a name twice: ${JSON.stringify(items)}`);
    for (const id of ids) if (deletedIds.has(id)) fail(`${id} is listed, but was reported as deleted`);
    for (const id of created) if (!ids.has(id) && !history.deleteRequested.has(id)) fail(`${id} is not listed`);
    return items;
  }

  const actions: readonly (() => Promise<unknown>)[] = [
    list,
    async function create() {
      const newVolume = { store, name: name() };
      const { status, body } = await callApi('POST', '/v1/volumes', newVolume, (a) => a.status === 201 || isTaken(a));
      if (status !== 201) return;
      const id = String(body['id']);
      if (history.created.has(id)) fail(`two creations were answered with ${id}`);
      history.created.add(id);
      ownIds.add(id);
    },
    async function remove() {
      const id = await find(name());
      if (id === undefined) return;
      // Another client may have deleted the volume first.
      const contested = history.deleteRequested.has(id);
      history.deleteRequested.add(id);
      const allowed = (a: RetriedAnswer): boolean =>
        a.status === 200 || (a.status === 404 && (contested || a.wasRetried));
      const { status } = await callApi('DELETE', `/v1/volumes/${id}`, undefined, allowed);
      if (status === 200 && history.deleted.has(id)) fail(`${id} was deleted twice`);
      history.deleted.add(id);
    },
    // A client renames only volumes that it created, so no other client changes the name.
    async function rename() {
      const id = pick([...ownIds], random);
      if (id === undefined) return;
      const newName = name();
      const allowed = (a: RetriedAnswer): boolean =>
        a.status === 200 || (a.status === 404 && history.deleteRequested.has(id)) || isTaken(a);
      const { status, body } = await callApi('POST', `/v1/volumes/${id}/rename`, { name: newName }, allowed);
      if (status === 404) ownIds.delete(id);
      if (status === 200 && body['name'] !== newName) fail(`${id} was renamed to ${body['name']}, not ${newName}`);
    },
  ];
  return { list, step: async () => void (await pick(actions, random)?.()) };
}
