import { createAsk, is } from './checked-call.ts';
import type { Told, Victim } from './killed-server.ts';
import { pick } from './seeded-random.ts';

/** What all rivals know together. Every answer must agree with it. */
interface History {
  /** Ids that a creation was answered with. */
  readonly created: Set<string>;
  /** Ids somebody asked to delete: from then on they may be gone. */
  readonly doomed: Set<string>;
  /** Ids that were said to be gone. */
  readonly gone: Set<string>;
  /** Answers that a name is taken. */
  taken: number;
}

interface Listed {
  readonly id: string;
  readonly name: string;
}

/** Clients that want the same few names of one store. */
export function createRivals(about: {
  readonly count: number;
  readonly victim: Victim;
  readonly store: string;
  readonly names: readonly string[];
  readonly random: () => number;
}): { readonly steps: readonly (() => Promise<void>)[]; readonly history: History; check(): Promise<void> } {
  const history: History = { created: new Set(), doomed: new Set(), gone: new Set(), taken: 0 };
  const rivals = Array.from({ length: about.count }, (_, index) => createRival(`rival${index}`, about, history));
  return {
    history,
    steps: rivals.map(({ step }) => step),
    check: async () => {
      const found = (await rivals[0]?.list()) ?? [];
      const present = new Set(found.map(({ id }) => id));
      for (const id of present) if (!history.created.has(id)) throw new Error(`nobody was told of ${id}`);
      const accounted = [...history.created].filter((id) => present.has(id) === history.gone.has(id));
      if (accounted.length > 0) throw new Error(`there and gone, or neither: ${accounted.join(', ')}`);
    },
  };
}

function createRival(me: string, about: Parameters<typeof createRivals>[0], history: History) {
  const { store, names, random } = about;
  const ask = createAsk(me, about.victim, random);
  const mine = new Set<string>();
  const name = (): string => pick(names, random) ?? '';
  const fail = (what: string): never => {
    throw new Error(`${me}: ${what}`);
  };
  const isTaken = ({ status, body }: Told): boolean => {
    if (status !== 409 || body['reason'] !== 'volume-exists') return false;
    history.taken++;
    return true;
  };

  async function find(wanted: string): Promise<string | undefined> {
    const gone = new Set(history.gone);
    const { status, body } = await ask('GET', `/v1/volumes/${store}..${wanted}`, undefined, is(200, 404));
    if (status === 404) return undefined;
    const id = String(body['id']);
    if (gone.has(id)) fail(`${wanted} is ${id}, which was said to be gone`);
    return id;
  }

  async function list(): Promise<readonly Listed[]> {
    const [gone, created] = [new Set(history.gone), new Set(history.created)];
    const { body } = await ask('GET', `/v1/volumes?store=${store}`, undefined, is(200));
    const items = body['items'] as readonly Listed[];
    const ids = new Set(items.map(({ id }) => id));
    if (new Set(items.map((one) => one.name)).size < items.length) fail(`a name twice: ${JSON.stringify(items)}`);
    for (const id of ids) if (gone.has(id)) fail(`${id} is listed, and was said to be gone`);
    for (const id of created) if (!ids.has(id) && !history.doomed.has(id)) fail(`${id} is not listed`);
    return items;
  }

  const actions: readonly (() => Promise<unknown>)[] = [
    list,
    async function create() {
      const wanted = { store, name: name() };
      const { status, body } = await ask('POST', '/v1/volumes', wanted, (a) => a.status === 201 || isTaken(a));
      if (status !== 201) return;
      const id = String(body['id']);
      if (history.created.has(id)) fail(`two creations were answered with ${id}`);
      history.created.add(id);
      mine.add(id);
    },
    async function remove() {
      const id = await find(name());
      if (id === undefined) return;
      // The other one may have been quicker.
      const contested = history.doomed.has(id);
      history.doomed.add(id);
      const allowed = (a: Told): boolean => a.status === 200 || (a.status === 404 && (contested || a.repeated));
      const { status } = await ask('DELETE', `/v1/volumes/${id}`, undefined, allowed);
      if (status === 200 && history.gone.has(id)) fail(`${id} was deleted twice`);
      history.gone.add(id);
    },
    // Only one's own, which nobody else renames: so what it is called then is known.
    async function rename() {
      const id = pick([...mine], random);
      if (id === undefined) return;
      const to = name();
      const allowed = (a: Told): boolean =>
        a.status === 200 || (a.status === 404 && history.doomed.has(id)) || isTaken(a);
      const { status, body } = await ask('POST', `/v1/volumes/${id}/rename`, { name: to }, allowed);
      if (status === 404) mine.delete(id);
      if (status === 200 && body['name'] !== to) fail(`${id} was renamed to ${body['name']}, not ${to}`);
    },
  ];
  return { list, step: async () => void (await pick(actions, random)?.()) };
}
