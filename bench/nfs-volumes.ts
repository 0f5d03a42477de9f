import { startGanesha } from '#testbed/ganesha.ts';
import { startVolumes } from './nfs/driver.ts';
import { makeFolder, measuredFileSystems } from './nfs/measured-folder.ts';
import { type Row, toRow } from './report.ts';

const rounds = 9;
const volumes = 1000;
const inFlight = 32;

interface Made {
  readonly perSecond: number;
  /** The round trips for one volume. */
  readonly callsEach: number;
}

export const bench = {
  about: 'volumes created on an NFS store, against a loop that sends the same calls',
  run: async (signal: AbortSignal, note: (text: string) => void): Promise<readonly Row[]> => {
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(`nfs-ganesha on ${place.kind}`);
    const sides = ['store', 'bare'] as const;
    await using folder = await makeFolder(place, sides);
    const exports = [{ path: folder.path, tag: 'bench', squash: 'none' }] as const;
    await using ganesha = await startGanesha({ exports, signal });
    const target = { host: ganesha.host, nfsPort: ganesha.nfsPort, mountPort: ganesha.mountPort, path: folder.path };
    await using store = startVolumes('store', target, signal);
    await using bare = startVolumes('bare', target, signal);
    const drivers = { store, bare };
    const made: Record<(typeof sides)[number], Made[]> = { store: [], bare: [] };
    for (let round = 0; round <= rounds; round++) {
      // The sides take turns at being the first.
      for (const side of round % 2 === 0 ? sides : sides.toReversed()) {
        const one = await drivers[side].request<Made>(`r${round} ${volumes} ${inFlight}`, 0);
        note(`${round === 0 ? 'warm-up' : `round ${round}/${rounds}`}: ${side} ${Math.round(one.perSecond)} volumes/s`);
        if (round > 0) made[side].push(one);
      }
    }
    return rows(made.store, made.bare);
  },
};

const rows = (store: readonly Made[], bare: readonly Made[]): readonly Row[] => [
  toRow({
    name: `volumes created, ${inFlight} in flight`,
    unit: '/s',
    values: store.map((one) => one.perSecond),
    yardsticks: bare.map((one) => one.perSecond),
    goal: { ratioAtLeast: 0.6 },
  }),
  toRow({
    name: 'round trips for each',
    unit: '',
    values: store.map((one) => one.callsEach),
    yardsticks: bare.map((one) => one.callsEach),
  }),
];
