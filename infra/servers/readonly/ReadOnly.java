package sluice.thrift;

import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** Lets only the first session, the server's own, change anything: clients are kept from mistakes, not from attacks. */
public class ReadOnly extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  private final AtomicReference<SparkSession> own = new AtomicReference<>();

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectCheckRule(
        asFunction(
            session -> {
              own.compareAndSet(null, session);
              return asFunction(
                  plan -> {
                    if (session != own.get()) {
                      check(plan);
                    }
                    return BoxedUnit.UNIT;
                  });
            }));
    return BoxedUnit.UNIT;
  }

  private static void check(LogicalPlan plan) {
    if (plan instanceof Command && !reads(plan.getClass().getSimpleName())) {
      throw new UnsupportedOperationException("The tables are read-only here: " + plan.nodeName() + " is refused.");
    }
    plan.children().foreach(
        asFunction(
            child -> {
              check(child);
              return BoxedUnit.UNIT;
            }));
  }

  /** Commands that are not known are refused. */
  private static boolean reads(String command) {
    return command.matches("(Show|Describe|Explain).*|(Set|Reset|SetNamespace)Command|SetCatalogAndNamespace");
  }

  private static <A, B> Function1<A, B> asFunction(Function1<A, B> function) {
    return function;
  }
}
