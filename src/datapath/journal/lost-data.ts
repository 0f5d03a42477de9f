import { type ErrnoName, errno } from '#wire/fuse/errno.ts';
import type { Nodes } from '../ports.ts';
import { lossReportedFlag, record } from './layout.ts';
import type { NodeRecords } from './node-records.ts';

/** By number. */
const errnoNames = new Map(Object.entries(errno).map(([name, number]) => [number as number, name as ErrnoName]));

/** The loss of acknowledged data of a node, in one word of its record. */
export function createLostData(
  { get, set }: NodeRecords,
  isOurs: (id: number) => boolean,
): Pick<Nodes, 'setDataLoss' | 'dataLoss' | 'setLossReported' | 'isLossReported'> {
  const wordOf = (id: number): number => (isOurs(id) ? get(id, record.lost) : 0);
  return {
    setDataLoss: (id, code) => {
      if (isOurs(id)) set(id, record.lost, code === undefined ? 0 : errno[code]);
    },
    dataLoss: (id) => {
      const number = wordOf(id) % lossReportedFlag;
      return number === 0 ? undefined : (errnoNames.get(number) ?? 'EIO');
    },
    setLossReported: (id) => {
      const number = wordOf(id);
      if (number > 0 && number < lossReportedFlag) set(id, record.lost, number + lossReportedFlag);
    },
    isLossReported: (id) => wordOf(id) >= lossReportedFlag,
  };
}
