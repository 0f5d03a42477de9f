import { startGanesha } from '#testbed/ganesha.ts';
import { type Comparison, compare } from './nfs/compare.ts';
import { startLibnfs, type Target } from './nfs/driver.ts';
import { type MeasuredFileSystem, makeFolder, measuredFileSystems } from './nfs/measured-folder.ts';
import { isDeep, tasks } from './nfs/operations.ts';
import { startOurServer } from './nfs/server.ts';
import { type Measured, type Row, toRow } from './report.ts';

const rounds = 13;
const fewRounds = 5;

type Note = (text: string) => void;

export const bench = {
  about: 'our NFS server against nfs-ganesha on the same file system, both driven by libnfs (C)',
  run: async (signal: AbortSignal, note: Note): Promise<readonly Row[]> => {
    const rows: Row[] = [];
    for (const place of measuredFileSystems()) rows.push(...(await measureOn(place, signal, note)));
    return rows;
  },
};

async function measureOn(place: MeasuredFileSystem, signal: AbortSignal, note: Note): Promise<readonly Row[]> {
  await using folder = await makeFolder(place, ['ours', 'ganesha']);
  const exports = [{ path: folder.path, tag: 'bench', squash: 'none' }] as const;
  await using ganesha = await startGanesha({ exports, signal });
  const theirs = { host: ganesha.host, nfsPort: ganesha.nfsPort, mountPort: ganesha.mountPort, path: folder.path };
  const against = async (target: Target, few: boolean): Promise<readonly Comparison[]> => {
    await using ours = startLibnfs(target, 'ours', signal);
    await using yardstick = startLibnfs(theirs, 'ganesha', signal);
    const some = few ? tasks.filter(({ operation }) => operation === 'mkdir' || operation === 'file') : tasks;
    return await compare({ ours, yardstick }, some, few ? fewRounds : rounds, note);
  };
  const measured: Measured[] = [];
  {
    note(`on ${place.kind}; names and attributes are written to the disk in its own time, as ganesha does it`);
    await using server = await startOurServer(folder.path, false, signal);
    const compared = await against(server, false);
    measured.push(...compared.map((each) => ({ ...speed(each), goal: { ratioAtLeast: isDeep(each.task) ? 1 : 0.6 } })));
    measured.push({ name: 'memory of our server afterwards', unit: 'MB', values: [await server.memory()] });
  }
  if (place.kind !== 'tmpfs') {
    note(`on ${place.kind}; names and attributes are on the disk before the answer, which ganesha does not wait for`);
    await using server = await startOurServer(folder.path, true, signal);
    const compared = await against(server, true);
    measured.push(...compared.map(speed).map((each) => ({ ...each, name: `${each.name}, durable` })));
  }
  return measured.map((each) => toRow({ ...each, name: `${place.kind}: ${each.name}` }));
}

const speed = ({ task, ours, yardstick }: Comparison): Measured => ({
  name: task.name,
  unit: task.unit,
  values: ours.map((one) => one.perSecond),
  yardsticks: yardstick.map((one) => one.perSecond),
});
